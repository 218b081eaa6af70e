"""Next-token fine-tuning of stories260K with the budget of `stories_sbd`: its baseline.

  python -m sbdjax train --config=preset:stories_ntp --workdir=runs/ntp

Variants are those of `stories_sbd`: a corpus, or `recipe` for the budget of its first run.
"""

from ml_collections import ConfigDict

from sbdjax.presets import Variants, stories_sbd

VARIANTS = Variants({name: name for name in ("raw", "self", "recipe")})


def get_config(variant: str = VARIANTS.default) -> ConfigDict:
  config = stories_sbd.get_config(VARIANTS[variant])
  config.loss = ConfigDict(dict(name="ntp"))
  return config
