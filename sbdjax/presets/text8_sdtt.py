"""Self-distillation through time on text8: rounds that halve the steps of a masked-diffusion model.

  python -m sbdjax train --config=preset:text8_mdm:cpu --workdir=runs/text8_mdm_cpu
  python -m sbdjax train --config=preset:text8_sdtt:cpu,1 --workdir=runs/text8_sdtt_cpu_1
  python -m sbdjax train --config=preset:text8_sdtt:cpu,2 --workdir=runs/text8_sdtt_cpu_2

The variant is the size and the number of the round. The first round starts from the run of `text8_mdm`
of this size, every other one from the round before (--config.init.checkpoint names another run); where it
starts is its teacher as well. Of SDTT's public code (see `sbdjax.losses.sdtt`): seven rounds of 10,000
updates, a teacher of 1,024 steps in the first, two of its steps in one, KL(student || teacher), learning
rate 3e-4. Ours: the batches of `text8_mdm`, a moving average short enough for a round, and in `cpu`, whose
rows have 128 characters, a first teacher of 128 steps.
"""

from ml_collections import ConfigDict

from sbdjax.presets import Variants, text8_mdm

# Of a size: steps of the first teacher, rounds, and what differs from the run of `text8_mdm`.
SIZES = {
  "full": (1024, 7, {"train.steps": 10_000, "train.ema_decay": 0.999, "optim.warmup_steps": 500}),
  "cpu": (
    128,
    4,
    {
      "optim.learning_rate": 3e-4, "optim.warmup_steps": 20, "train.steps": 300, "train.ema_decay": 0.99,
      "train.eval_every": 100, "train.checkpoint_every": 100,
    },
  ),
}  # fmt: skip
VARIANTS = Variants(
  {
    f"{size},{number}": (size, number)
    for size, (_, rounds, _) in SIZES.items()
    for number in range(1, rounds + 1)
  }
)


def distilled(config: ConfigDict, corpus: str, size: str, number: int) -> ConfigDict:
  """The masked-diffusion `config` of `<corpus>_mdm` as one that trains a round."""
  first, _, changes = SIZES[size]
  name = "" if size == "full" else f"_{size}"
  before = f"{corpus}_sdtt{name}_{number - 1}" if number > 1 else f"{corpus}_mdm{name}"
  config.init = ConfigDict(dict(checkpoint=f"runs/{before}"))
  config.model = ConfigDict(dict(dropout=0.0))
  config.loss = ConfigDict(
    dict(name="sdtt", steps=first >> (number - 1), teacher_steps=2, divergence="reverse")
  )
  config.optim.update(name="adamw", learning_rate=3e-4, schedule="constant", weight_decay=0.0)
  config.update_from_flattened_dict(changes)
  return config


def get_config(variant: str = VARIANTS.default) -> ConfigDict:
  size, number = VARIANTS[variant]
  return distilled(text8_mdm.get_config(size), "text8", size, number)
