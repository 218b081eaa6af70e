"""Masked diffusion on proteins: a bidirectional model of ESM-2's shape, trained from scratch.

  python -m sbdjax train --config=configs/uniref50_mdm.py --workdir=runs/uniref50_mdm
  python -m sbdjax train --config=configs/uniref50_mdm.py:cpu --workdir=runs/uniref50_mdm_cpu

Settings: sbdjax/presets/uniref50_mdm.py. Copy this file for a config of your own.
"""

from sbdjax.presets import uniref50_mdm as preset


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.optim.learning_rate = 1e-3
  return config
