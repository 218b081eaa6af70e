r"""A causal block on top of a frozen ESM-2 or DPLM, which makes it self-speculative.

  python -m sbdjax train --config=configs/esm2_150m_ssmd.py --workdir=runs/ssmd_esm2 \
    --config.init.checkpoint=FOLDER --config.data.path=uniref50.fasta
  python -m sbdjax train --config=configs/esm2_150m_ssmd.py:cpu --workdir=runs/ssmd_frozen_cpu \
    --config.data.path=proteins.fasta

Settings: sbdjax/presets/esm2_150m_ssmd.py. Copy this file for a config of your own.
"""

from sbdjax.presets import esm2_150m_ssmd as preset


def get_config(variant: str = preset.VARIANTS.default):
  config = preset.get_config(variant)
  # Change any field here, for instance:
  # config.optim.learning_rate = 1e-3
  return config
