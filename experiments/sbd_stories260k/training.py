"""Trains the runs that the preset stories_sbd_training_sweep decodes, on the embedded stories.

  python experiments/sbd_stories260k/training.py --seeds=0,1,2
  python experiments/sbd_stories260k/training.py --trainings="next tokens alone"

`stories_sbd:recipe` with fewer updates and one change each, and next tokens alone. Re-running the command resumes; processes
with other seeds may run beside it.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import jax

import sbdjax
from sbdjax import presets
from sbdjax.presets import stories_sbd_training_sweep as sweep


def config_of(training: str, seed: int, steps: int) -> Any:
  """The recipe with the changes of a variant, or that of the baseline."""
  family = "stories_ntp" if training == sweep.BASELINE else "stories_sbd"
  config = presets.load(f"{family}:recipe")
  config.update_from_flattened_dict(
    sweep.TRAININGS.get(training, {})
    | {
      "train.steps": steps,
      "train.seed": seed,
      "train.eval_every": 0,
      "train.checkpoint_every": 0,
    }
  )
  return config


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--steps", type=int, default=500)
  parser.add_argument("--seeds", default=",".join(map(str, sweep.SEEDS)))
  known = (*sweep.TRAININGS, sweep.BASELINE)
  parser.add_argument("--trainings", default=";".join(known), help="names between semicolons")
  args = parser.parse_args(argv)
  named = args.trainings.split(";")
  unknown = [name for name in named if name not in known]
  if unknown:
    parser.error(f"--trainings: unknown {unknown[0]!r}: choose from {'; '.join(known)}")
  for seed in map(int, args.seeds.split(",")):
    for training in named:
      sbdjax.train(config_of(training, seed, args.steps), sweep.folder(training, seed))
      jax.clear_caches()
  return 0


if __name__ == "__main__":
  sys.exit(main())
