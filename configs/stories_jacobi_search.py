"""Searches Jacobi decoding: tokens/s over block size and candidates (Jacobi Forcing, Appendix E).

  python -m sbdjax sweep --config=configs/stories_jacobi_search.py --workdir=runs/jf_search

Settings: sbdjax/presets/stories_jacobi_search.py. Copy this file for a config of your own.
"""

from sbdjax.presets import stories_jacobi_search as preset

get_sweep = preset.get_sweep
get_surface = preset.get_surface


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.sweep.num_prompts = 10
  return config
