"""Self-speculative masked diffusion on proteins from scratch, as configs/uniref50_mdm.py otherwise.

  python -m sbdjax train --config=configs/uniref50_ssmd.py --workdir=runs/uniref50_ssmd
  python -m sbdjax train --config=configs/uniref50_ssmd.py:cpu --workdir=runs/uniref50_ssmd_cpu

One of the 30 blocks is causal. The paper adds a causal block to a pretrained model instead: that is
configs/ssmd_esm2_150m.py. Ablations are variants as in configs/text8_ssmd.py.
"""

from ml_collections import ConfigDict

from configs import uniref50_mdm
from configs.text8_ssmd import with_head


def get_config(variant: str = "full") -> ConfigDict:
  size, _, ablation = variant.partition(",")
  return with_head(uniref50_mdm.get_config(size), ablation)
