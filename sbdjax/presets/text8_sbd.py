"""Set Block Decoding trained from scratch on text8, with the budget of `text8_ntp`.

  python -m sbdjax train --config=preset:text8_sbd --workdir=runs/text8_sbd
  python -m sbdjax train --config=preset:text8_sbd:cpu --workdir=runs/text8_sbd_cpu

The NTP half gives bits per character that compare with autoregressive models on text8.
"""

from ml_collections import ConfigDict

from sbdjax.presets import text8_ntp

VARIANTS = text8_ntp.VARIANTS


def get_config(variant: str = VARIANTS.default) -> ConfigDict:
  config = text8_ntp.get_config(variant)
  config.loss = ConfigDict(dict(name="sbd", block_size_min=2, block_size_max=16))
  return config
