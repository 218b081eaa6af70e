"""Self-speculative masked diffusion on OpenWebText, with the budget and data of configs/owt_mdm.py.

  python -m sbdjax train --config=configs/owt_ssmd.py --workdir=runs/owt_ssmd
  python -m sbdjax train --config=configs/owt_ssmd.py:cpu --workdir=runs/owt_ssmd_cpu

11 bidirectional and 1 causal block (arXiv:2510.03929, section 5). Ablations are variants as in
configs/text8_ssmd.py: `full,no_residual`, `full,two_causal`.
"""

from ml_collections import ConfigDict

from configs import owt_mdm
from configs.text8_ssmd import with_head


def get_config(variant: str = "full") -> ConfigDict:
  size, _, ablation = variant.partition(",")
  return with_head(owt_mdm.get_config(size), ablation)
