"""Jacobi decoding of the models of `stories_jacobi`, beside AR.

  python -m sbdjax sweep --config=configs/stories_jacobi_sweep.py:methods --workdir=runs/jf_methods

Settings: sbdjax/presets/stories_jacobi_sweep.py. Copy this file for a config of your own.
"""

from sbdjax.presets import stories_jacobi_sweep as preset

get_sweep = preset.get_sweep


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.sweep.num_prompts = 10
  return config
