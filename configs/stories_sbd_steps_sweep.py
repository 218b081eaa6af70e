"""Quality against speed after different numbers of fine-tuning steps (SBD paper: Figure 5).

  python -m sbdjax sweep --config=configs/stories_sbd_steps_sweep.py --workdir=runs/steps_sweep

Settings: sbdjax/presets/stories_sbd_steps_sweep.py. Copy this file for a config of your own.
"""

from sbdjax.presets import stories_sbd_steps_sweep as preset

get_sweep = preset.get_sweep


def get_config():
  config = preset.get_config()
  # Change any field here, for instance:
  # config.sweep.num_prompts = 10
  return config
