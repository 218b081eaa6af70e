"""Masked diffusion on stories, from a causal model: the baseline of `stories_ssmd`.

  python -m sbdjax train --config=configs/stories_mdm.py --workdir=runs/stories_mdm

Settings: sbdjax/presets/stories_mdm.py. Copy this file for a config of your own.
"""

from sbdjax.presets import stories_mdm as preset


def get_config():
  config = preset.get_config()
  # Change any field here, for instance:
  # config.optim.learning_rate = 1e-3
  return config
