"""Self-speculative masked diffusion on OpenWebText, with the budget and data of `owt_mdm`.

  python -m sbdjax train --config=preset:owt_ssmd --workdir=runs/owt_ssmd
  python -m sbdjax train --config=preset:owt_ssmd:cpu --workdir=runs/owt_ssmd_cpu

11 bidirectional and 1 causal block (arXiv:2510.03929, section 5). Ablations are variants as in
`text8_ssmd`: `full,no_residual`, `full,two_causal`.
"""

from ml_collections import ConfigDict

from sbdjax.presets import owt_mdm
from sbdjax.presets.text8_ssmd import ablated, with_head

VARIANTS = ablated(owt_mdm.VARIANTS)


def get_config(variant: str = VARIANTS.default) -> ConfigDict:
  size, ablation = VARIANTS[variant]
  return with_head(owt_mdm.get_config(size), ablation)
