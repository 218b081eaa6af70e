"""Next-token fine-tuning of stories260K with the budget of `stories_sbd`: its baseline.

  python -m sbdjax train --config=configs/stories_ntp.py --workdir=runs/ntp

Settings: sbdjax/presets/stories_ntp.py. Copy this file for a config of your own.
"""

from sbdjax.presets import stories_ntp as preset


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.optim.learning_rate = 1e-3
  return config
