"""Self-distillation through time on OpenWebText: rounds that halve the steps of the model of `owt_mdm`.

  python -m sbdjax train --config=preset:owt_sdtt:full,1 --workdir=runs/owt_sdtt_1
  python -m sbdjax train --config=preset:owt_sdtt:full,2 --workdir=runs/owt_sdtt_2

Sizes, rounds and settings are those of `text8_sdtt`; the first round starts from runs/owt_mdm
(`cpu`: runs/owt_mdm_cpu), every other one from the round before.
"""

from ml_collections import ConfigDict

from sbdjax.presets import owt_mdm, text8_sdtt

VARIANTS = text8_sdtt.VARIANTS


def get_config(variant: str = VARIANTS.default) -> ConfigDict:
  size, number = VARIANTS[variant]
  return text8_sdtt.distilled(owt_mdm.get_config(size), "owt", size, number)
