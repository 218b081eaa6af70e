"""Every way to decode one SBD model side by side: AR, entropy-bounded, and verified SBD.

  python -m sbdjax sweep --config=configs/stories_sbd_verified_sweep.py --workdir=runs/verified

Settings: sbdjax/presets/stories_sbd_verified_sweep.py. Copy this file for a config of your own.
"""

from sbdjax.presets import stories_sbd_verified_sweep as preset

get_sweep = preset.get_sweep


def get_config():
  config = preset.get_config()
  # Change any field here, for instance:
  # config.sweep.num_prompts = 10
  return config
