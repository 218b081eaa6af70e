"""Next-token fine-tuning of stories260K with the budget of `stories_sbd`: its baseline.

  python -m sbdjax train --config=preset:stories_ntp --workdir=runs/ntp

Variants are those of `stories_sbd`: a corpus, or `recipe` for the budget of the shipped weights.
"""

from ml_collections import ConfigDict

from sbdjax.presets import stories_sbd

VARIANTS = stories_sbd.VARIANTS


def get_config(variant: str = VARIANTS.default) -> ConfigDict:
  config = stories_sbd.get_config(variant)
  config.loss = ConfigDict(dict(name="ntp"))
  config.init.teacher = ""  # this loss learns from the labels alone
  return config
