"""Self-speculative masked diffusion on text8, with the budget of `text8_mdm`.

  python -m sbdjax train --config=configs/text8_ssmd.py --workdir=runs/text8_ssmd
  python -m sbdjax train --config=configs/text8_ssmd.py:cpu --workdir=runs/text8_ssmd_cpu

Settings: sbdjax/presets/text8_ssmd.py. Copy this file for a config of your own.
"""

from sbdjax.presets import text8_ssmd as preset


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.optim.learning_rate = 1e-3
  return config
