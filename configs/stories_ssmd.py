"""Self-speculative masked diffusion on stories, from a causal model, with the data of `stories_mdm`.

  python -m sbdjax train --config=configs/stories_ssmd.py --workdir=runs/stories_ssmd

Settings: sbdjax/presets/stories_ssmd.py. Copy this file for a config of your own.
"""

from sbdjax.presets import stories_ssmd as preset


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.optim.learning_rate = 1e-3
  return config
