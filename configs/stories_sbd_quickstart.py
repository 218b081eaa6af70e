"""What `python -m sbdjax quickstart` trains: stories260K becomes an SBD model in a few minutes.

  python -m sbdjax train --config=configs/stories_sbd_quickstart.py --workdir=runs/quickstart

Settings: sbdjax/presets/stories_sbd_quickstart.py. Copy this file for a config of your own.
"""

from sbdjax.presets import stories_sbd_quickstart as preset


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.optim.learning_rate = 1e-3
  return config
