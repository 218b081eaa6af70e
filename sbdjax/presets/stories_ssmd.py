"""Self-speculative masked diffusion on stories, from a causal model, with the data of `stories_mdm`.

  python -m sbdjax train --config=preset:stories_ssmd --workdir=runs/stories_ssmd

All five blocks of stories260K are the bidirectional trunk; one causal block, which starts untrained,
comes on top. `text8_ssmd` splits the blocks of its baseline instead.
"""

from ml_collections import ConfigDict

from sbdjax.presets import stories_mdm
from sbdjax.presets.text8_ssmd import with_head


def get_config() -> ConfigDict:
  return with_head(stories_mdm.get_config())
