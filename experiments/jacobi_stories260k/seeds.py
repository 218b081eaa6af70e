"""Table of the trainings that were done with three seeds, from the recorded points.

python experiments/jacobi_stories260k/seeds.py

Seed 0 is in ablation.jsonl, the others in seeds.jsonl. A training is compared with what its own run holds.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable

from sbdjax import bootstrap
from sbdjax.bootstrap import Interval
from sbdjax.evals import markdown, paired

HERE = pathlib.Path(__file__).resolve().parent
NC, CLEAN = "linear, window 16, NC", "linear, window 16, clean context"
# AR of the original model, noisy context, clean context: of one seed and one run.
Trained = tuple[dict, dict, dict]
Number = Callable[[dict, dict, dict], Interval]
NUMBERS: dict[str, tuple[Number, Callable[[Interval], str]]] = {
  "noisy context: tokens per forward": (
    lambda _, nc, __: paired.tokens_per_forward(nc),
    lambda x: x.shown(2),
  ),
  "clean context: tokens per forward": (
    lambda _, __, clean: paired.tokens_per_forward(clean),
    lambda x: x.shown(2),
  ),
  "clean / noisy: tokens per forward": (
    lambda _, nc, clean: paired.forwards_ratio(clean, nc),
    lambda x: x.shown(3),
  ),
  "noisy context: judge NLL above the original's": (
    lambda original, nc, _: paired.nll_difference(nc, original),
    markdown.percent,
  ),
  "clean context: judge NLL above the original's": (
    lambda original, _, clean: paired.nll_difference(clean, original),
    markdown.percent,
  ),
  "clean above noisy: judge NLL": (
    lambda _, nc, clean: paired.nll_difference(clean, nc),
    markdown.percent,
  ),
  "noisy context: repeats": (lambda _, nc, __: paired.repetition(nc), lambda x: x.shown(3)),
  "clean context: repeats": (lambda _, __, clean: paired.repetition(clean), lambda x: x.shown(3)),
}


def of_seeds() -> list[Trained]:
  """The trainings of seeds 0, 1 and 2."""
  first, others = (paired.read(HERE / f"{name}.jsonl") for name in ("ablation", "seeds"))
  found = [_labelled(first, NC, CLEAN)]
  return found + [
    _labelled(others, f"{NC}, seed {seed}", f"{CLEAN}, seed {seed}") for seed in (1, 2)
  ]


def _labelled(rows: list[dict], *labels: str) -> Trained:
  original = paired.original_of(rows)
  assert original is not None
  nc, clean = (markdown.find(rows, label) for label in labels)
  return original, nc, clean


def seeds() -> str:
  """What every seed says, with intervals over prompts; the mean of the seeds with the least and the most."""
  lines = []
  for name, (number, shown) in NUMBERS.items():
    found = [number(*trained) for trained in of_seeds()]
    lines.append((name, *map(shown, found), shown(bootstrap.spread([x.value for x in found]))))
  return markdown.table(("", "seed 0", "seed 1", "seed 2", "mean [least, most]"), lines)


def mean(name: str) -> tuple[float, ...]:
  """A line's mean, least and most."""
  found = bootstrap.spread([NUMBERS[name][0](*trained).value for trained in of_seeds()])
  return tuple(x for x in found if x is not None)


def main(argv: list[str] | None = None) -> int:
  argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(argv)
  print(seeds())
  return 0


if __name__ == "__main__":
  sys.exit(main())
