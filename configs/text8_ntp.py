"""Next-token prediction on text8: the autoregressive reference of the text8 curves.

  python -m sbdjax train --config=configs/text8_ntp.py --workdir=runs/text8_ntp
  python -m sbdjax train --config=configs/text8_ntp.py:cpu --workdir=runs/text8_ntp_cpu

Settings: sbdjax/presets/text8_ntp.py. Copy this file for a config of your own.
"""

from sbdjax.presets import text8_ntp as preset


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.optim.learning_rate = 1e-3
  return config
