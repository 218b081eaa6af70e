r"""A causal block on top of the frozen AntiBERTy, which makes it self-speculative.

  python -m sbdjax train --config=configs/antibody_ssmd.py --workdir=runs/antibody_ssmd \
    --config.init.checkpoint=FOLDER --config.data.path=heavy.fasta
  python -m sbdjax train --config=configs/antibody_ssmd.py:cpu --workdir=runs/antibody_ssmd_cpu \
    --config.init.checkpoint=FOLDER --config.data.path=train.fasta --config.data.valid_path=valid.fasta

Settings: sbdjax/presets/antibody_ssmd.py. Copy this file for a config of your own.
"""

from sbdjax.presets import antibody_ssmd as preset


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.optim.learning_rate = 1e-3
  return config
