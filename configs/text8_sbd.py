"""Set Block Decoding trained from scratch on text8, with the budget of `text8_ntp`.

  python -m sbdjax train --config=configs/text8_sbd.py --workdir=runs/text8_sbd
  python -m sbdjax train --config=configs/text8_sbd.py:cpu --workdir=runs/text8_sbd_cpu

Settings: sbdjax/presets/text8_sbd.py. Copy this file for a config of your own.
"""

from sbdjax.presets import text8_sbd as preset


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.optim.learning_rate = 1e-3
  return config
