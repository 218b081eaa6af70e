"""Every method of experiments/one_task by the clock: all points decode the same exercises in turns.

  python -m sbdjax sweep --config=configs/stories_exercises_sweep.py --workdir=runs/turns

Settings: sbdjax/presets/stories_exercises_sweep.py. Copy this file for a config of your own.
"""

from sbdjax.presets import stories_exercises_sweep as preset

get_sweep = preset.get_sweep


def get_config():
  config = preset.get_config()
  # Change any field here, for instance:
  # config.sweep.num_prompts = 10
  return config
