"""Tables of trainings that differ from the first in one setting, with three seeds each, from the recorded points.

python experiments/jacobi_stories260k/trainings.py

Seed 0 is in the record of its own table, the others in one of theirs. A training is compared with the first of its own
seed and run.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable
from typing import NamedTuple

from sbdjax import bootstrap
from sbdjax.bootstrap import Interval
from sbdjax.evals import markdown, paired

HERE = pathlib.Path(__file__).resolve().parent


class Trained(NamedTuple):
  """A training of one seed, the first of the same seed, and AR of the model that all were made from, if measured."""

  row: dict
  first: dict
  original: dict | None


class Number(NamedTuple):
  """What a table tells of a training. `of`: None for a training that it does not concern."""

  of: Callable[[Trained], Interval | None]
  shown: Callable[[Interval], str]


def _against(row: dict, other: dict | None) -> Interval | None:
  return None if other is None or row is other else paired.nll_difference(row, other)


_two_digits, _three_digits = (lambda x: x.shown(2)), (lambda x: x.shown(3))
TIMES, ABOVE, COST = (
  "times the first's",
  "judge NLL above the first's",
  "judge NLL above the original's",
)
NUMBERS: dict[str, Number] = {
  "tokens per forward": Number(lambda t: paired.tokens_per_forward(t.row), _two_digits),
  TIMES: Number(
    lambda t: None if t.row is t.first else paired.forwards_ratio(t.row, t.first), _three_digits
  ),
  COST: Number(lambda t: _against(t.row, t.original), markdown.percent),
  ABOVE: Number(lambda t: _against(t.row, t.first), markdown.percent),
  "judge NLL": Number(lambda t: paired.judge_nll(t.row), _three_digits),
  "repeats": Number(lambda t: paired.repetition(t.row), _three_digits),
  "distinct-2": Number(lambda t: Interval(t.row["distinct_2"]), _three_digits),
}


class Trainings(NamedTuple):
  """The trainings of one table: the record of seed 0, and that of seeds 1 and 2."""

  record: str
  others: str

  def of_seeds(self) -> dict[str, list[Trained]]:
    """Training -> what is recorded of its seeds 0, 1 and 2."""
    rows, others = (paired.read(HERE / name) for name in self)
    found: dict[str, list[Trained]] = {}
    for seed in range(3):
      end = f", seed {seed}" if seed else ""
      of_run = others if seed else rows
      original = paired.original_of(of_run)
      of_seed = {
        _label(r).removesuffix(end): r
        for r in of_run
        if r is not original and _label(r).endswith(end)
      }
      first = next(iter(of_seed.values()))
      for label, row in of_seed.items():
        found.setdefault(label, []).append(Trained(row, first, original))
    return found

  def values(self, label: str, number: str) -> list[Interval]:
    """A number of a training, of every seed; nothing where it does not concern the training.

    Raises:
      ValueError: some of the seeds have it, and others not.
    """
    each = [NUMBERS[number].of(trained) for trained in self.of_seeds()[label]]
    found = [x for x in each if x is not None]
    if found and len(found) < len(each):
      raise ValueError(f"{number} of {label!r} was not measured with every seed")
    return found

  def means(self, *names: str) -> str:
    """These numbers of every training: the mean of the seeds, with the least and the most."""
    lines = []
    for label in self.of_seeds():
      cells = [_mean_cell(self.values(label, name), NUMBERS[name]) for name in names]
      lines.append((label, *cells))
    return markdown.table(("training", *names), lines)

  def by_seed(self, name: str) -> str:
    """One number of every training and seed, with intervals over prompts."""
    shown = NUMBERS[name].shown
    lines = [
      (label, *map(shown, values))
      for label in self.of_seeds()
      if (values := self.values(label, name))
    ]
    return markdown.table((name, "seed 0", "seed 1", "seed 2"), lines)

  def mean(self, label: str, name: str) -> tuple[float, ...]:
    """A number's mean, least and most."""
    found = bootstrap.spread([x.value for x in self.values(label, name)])
    return tuple(x for x in found if x is not None)


def _label(row: dict) -> str:
  return row["settings"]["sweep"]["label"]


def _mean_cell(values: list[Interval], number: Number) -> str:
  return number.shown(bootstrap.spread([x.value for x in values])) if values else ""


ABLATION = Trainings("ablation.jsonl", "seeds.jsonl")
AR_WEIGHT = Trainings("ar_weight.jsonl", "ar_weight_seeds.jsonl")


def ablation_means() -> str:
  """Tables 4 and 5 with three seeds."""
  return ABLATION.means("tokens per forward", TIMES, COST, ABOVE, "repeats", "distinct-2")


def ablation_times() -> str:
  """Tokens per forward of Tables 4 and 5 / those of the first training, seed by seed."""
  return ABLATION.by_seed(TIMES)


def ablation_above() -> str:
  """Judge NLL of Tables 4 and 5 above that of the first training, seed by seed."""
  return ABLATION.by_seed(ABOVE)


def ar_weight_means() -> str:
  """The weight of the AR loss with three seeds."""
  return AR_WEIGHT.means("tokens per forward", TIMES, "judge NLL", ABOVE, "repeats", "distinct-2")


def ablated(label: str, name: str = TIMES) -> tuple[float, ...]:
  """Of Tables 4 and 5: a number's mean, least and most."""
  return ABLATION.mean(label, name)


def main(argv: list[str] | None = None) -> int:
  argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(argv)
  print(ablation_means(), ablation_times(), ablation_above(), ar_weight_means(), sep="\n\n")
  return 0


if __name__ == "__main__":
  sys.exit(main())
