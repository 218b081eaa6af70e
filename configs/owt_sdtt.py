"""Self-distillation through time on OpenWebText: rounds that halve the steps of the model of `owt_mdm`.

  python -m sbdjax train --config=configs/owt_sdtt.py:full,1 --workdir=runs/owt_sdtt_1

Settings: sbdjax/presets/owt_sdtt.py. Copy this file for a config of your own.
"""

from sbdjax.presets import owt_sdtt as preset


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.optim.learning_rate = 1e-3
  return config
