"""Masked diffusion on text8: the baseline of the self-speculative models.

  python -m sbdjax train --config=configs/text8_mdm.py --workdir=runs/text8_mdm
  python -m sbdjax train --config=configs/text8_mdm.py:cpu --workdir=runs/text8_mdm_cpu

Settings: sbdjax/presets/text8_mdm.py. Copy this file for a config of your own.
"""

from sbdjax.presets import text8_mdm as preset


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.optim.learning_rate = 1e-3
  return config
