"""Masked diffusion on OpenWebText: the baseline of the self-speculative models.

  python -m sbdjax.data.tfds_openwebtext --data_dir=data/openwebtext --tokenizer=data/gpt2 FILE ...
  python -m sbdjax train --config=configs/owt_mdm.py --workdir=runs/owt_mdm
  python -m sbdjax train --config=configs/owt_mdm.py:cpu --workdir=runs/owt_mdm_cpu

Settings: sbdjax/presets/owt_mdm.py. Copy this file for a config of your own.
"""

from sbdjax.presets import owt_mdm as preset


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.optim.learning_rate = 1e-3
  return config
