"""FreeDave beside static and dynamic decoding of a block-diffusion stories model.

  python -m sbdjax sweep --config=configs/stories_freedave_sweep.py:4 --workdir=runs/freedave4

Settings: sbdjax/presets/stories_freedave_sweep.py. Copy this file for a config of your own.
"""

from sbdjax.presets import stories_freedave_sweep as preset

get_sweep = preset.get_sweep


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.sweep.num_prompts = 10
  return config
