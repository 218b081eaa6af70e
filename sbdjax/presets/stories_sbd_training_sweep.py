"""What the masked half of SBD should be trained on: quality against speed of short runs, three seeds each.

  python -m sbdjax sweep --config=preset:stories_sbd_training_sweep --workdir=runs/training_sweep

The checkpoints are the runs of experiments/sbd_stories260k/training.py, which trains every variant in
`TRAININGS` with the seeds in `SEEDS`, and `BASELINE` beside them, which is no point here. Prompts and
judge are those of `stories_sbd_sweep`. Variants: `all` trainings, or one of them: `random`, `half`,
`whole`, `teacher`.
"""

from typing import Any

from ml_collections import ConfigDict

from sbdjax.presets import Variants, stories_sbd_sweep

# variant -> what it changes in the settings of `stories_sbd:recipe`
TRAININGS: dict[str, dict[str, Any]] = {
  "masks at random": {},
  "half of the rows masked whole": {"loss.full_mask_fraction": 0.5},
  "all rows masked whole": {"loss.full_mask_fraction": 1.0},
  "half labels, half teacher": {"loss.teacher_weight": 0.5},
}
VARIANTS: Variants[tuple[str, ...]] = Variants(
  {"all": tuple(TRAININGS)}
  | {
    name: (training,)
    for name, training in zip(("random", "half", "whole", "teacher"), TRAININGS, strict=True)
  }
)
BASELINE = "next tokens alone"  # `stories_ntp:recipe`, which AR decodes
SEEDS = (0, 1, 2)
DECODERS: tuple[dict[str, Any], ...] = (
  {"decoder.name": "ar"},
  {"decoder.gamma": 0.0},
  {"decoder.gamma": 0.1},
  {"decoder.gamma": 0.4},
  {"decoder.name": "sbd_verified", "decoder.drafting": "fan_out", "decoder.block_size": 8},
)


def folder(training: str, seed: int) -> str:
  """Where the run of a variant and seed is."""
  return f"runs/training/{training.replace(', ', '_').replace(' ', '_')}_{seed}"


def get_config(variant: str = VARIANTS.default) -> ConfigDict:
  VARIANTS[variant]  # raises UsageError where there is none
  config = stories_sbd_sweep.get_config()
  config.sweep.repeats = 0  # every checkpoint is as fast as the others
  return config


def get_sweep(variant: str = VARIANTS.default) -> list[dict]:
  return [
    {"sweep.checkpoint": folder(training, seed), "sweep.label": f"{training}, seed {seed}"}
    | decoder
    for seed in SEEDS
    for training in VARIANTS[variant]
    for decoder in DECODERS
  ]
