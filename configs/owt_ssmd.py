"""Self-speculative masked diffusion on OpenWebText, with the budget and data of `owt_mdm`.

  python -m sbdjax train --config=configs/owt_ssmd.py --workdir=runs/owt_ssmd
  python -m sbdjax train --config=configs/owt_ssmd.py:cpu --workdir=runs/owt_ssmd_cpu

Settings: sbdjax/presets/owt_ssmd.py. Copy this file for a config of your own.
"""

from sbdjax.presets import owt_ssmd as preset


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.optim.learning_rate = 1e-3
  return config
