"""Self-speculative masked diffusion on proteins from scratch, as `uniref50_mdm` otherwise.

  python -m sbdjax train --config=preset:uniref50_ssmd --workdir=runs/uniref50_ssmd
  python -m sbdjax train --config=preset:uniref50_ssmd:cpu --workdir=runs/uniref50_ssmd_cpu

One of the 30 blocks is causal. The paper adds a causal block to a pretrained model instead: that is
`esm2_150m_ssmd`. Ablations are variants as in `text8_ssmd`.
"""

from ml_collections import ConfigDict

from sbdjax.presets import uniref50_mdm
from sbdjax.presets.text8_ssmd import ablated, with_head

VARIANTS = ablated(uniref50_mdm.VARIANTS)


def get_config(variant: str = VARIANTS.default) -> ConfigDict:
  size, ablation = VARIANTS[variant]
  return with_head(uniref50_mdm.get_config(size), ablation)
