"""Self-speculative masked diffusion on proteins from scratch, as `uniref50_mdm` otherwise.

  python -m sbdjax train --config=configs/uniref50_ssmd.py --workdir=runs/uniref50_ssmd
  python -m sbdjax train --config=configs/uniref50_ssmd.py:cpu --workdir=runs/uniref50_ssmd_cpu

Settings: sbdjax/presets/uniref50_ssmd.py. Copy this file for a config of your own.
"""

from sbdjax.presets import uniref50_ssmd as preset


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.optim.learning_rate = 1e-3
  return config
