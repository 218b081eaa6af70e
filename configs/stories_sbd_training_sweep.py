"""What the masked half of SBD should be trained on: quality against speed of short runs, three seeds each.

  python -m sbdjax sweep --config=configs/stories_sbd_training_sweep.py --workdir=runs/training_sweep

Settings: sbdjax/presets/stories_sbd_training_sweep.py. Copy this file for a config of your own.
"""

from sbdjax.presets import stories_sbd_training_sweep as preset

get_sweep = preset.get_sweep


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.sweep.num_prompts = 10
  return config
