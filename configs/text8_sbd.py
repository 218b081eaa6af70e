"""Set Block Decoding trained from scratch on text8, with the budget of configs/text8_ntp.py.

  python -m sbdjax train --config=configs/text8_sbd.py --workdir=runs/text8_sbd
  python -m sbdjax train --config=configs/text8_sbd.py:cpu --workdir=runs/text8_sbd_cpu

The NTP half gives bits per character that compare with autoregressive models on text8.
"""

from ml_collections import ConfigDict

from configs import text8_ntp


def get_config(size: str = "full") -> ConfigDict:
  config = text8_ntp.get_config(size)
  config.loss = ConfigDict(dict(name="sbd", block_size_min=2, block_size_max=16))
  return config
