"""Self-speculative masked diffusion on stories, from a causal model, with the data of `stories_mdm`.

  python -m sbdjax train --config=preset:stories_ssmd --workdir=runs/stories_ssmd

All five blocks of stories260K are the bidirectional trunk; one causal block, which starts untrained,
comes on top. `text8_ssmd` splits the blocks of its baseline instead. Variants: `one_causal`, and the
ablations that are described there, `no_residual`, `two_causal` (seven blocks in all: the pretrained
ones stay) and `paper_positions`.
"""

from ml_collections import ConfigDict

from sbdjax.presets import Variants, stories_mdm
from sbdjax.presets.text8_ssmd import ABLATIONS, with_head

VARIANTS = Variants({name or "one_causal": name for name in ABLATIONS})


def get_config(variant: str = VARIANTS.default) -> ConfigDict:
  return with_head(stories_mdm.get_config(), VARIANTS[variant])
