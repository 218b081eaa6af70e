"""Recorded trainings of which there are several seeds: `experiments/seed_curves.py` writes a line per run."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from sbdjax.bootstrap import Interval, spread
from sbdjax.errors import DataError

# `run` (the name that its seeds share), `seed`, `curves` (metric -> [step, value] pairs), settings and provenance.
Run = Mapping[str, Any]
NTP = "eval/ntp_loss"
# Metrics of trainings in words.
NAMES = {
  NTP: "next-token loss, held out",
  "eval/masked_loss": "masked loss, held out",
  "eval/nelbo": "bound, held out",
  "eval/draft_nelbo": "drafts, held out",
  "eval/target_nelbo": "targets, held out",
  "train/draft_loss": "loss of drafts in training",
  "train/target_loss": "loss of targets in training",
}


def read(path: pathlib.Path | str) -> list[dict[str, Any]]:
  """The recorded runs."""
  return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def check(runs: Sequence[Run]) -> None:
  """Checks that seeds of one name can be put together.

  Raises:
    DataError: a run without curves, two with the same seed, or with curves at other steps.
  """
  seen: set[tuple[str, Any]] = set()
  steps: dict[tuple[str, str], list[int]] = {}
  for run in runs:
    name, curves = run["run"], run["curves"]
    if not curves:
      raise DataError(f"{name}: none of the metrics is recorded")
    if (name, run["seed"]) in seen:
      raise DataError(f"{name}: two runs have the seed {run['seed']}")
    seen.add((name, run["seed"]))
    for metric, curve in curves.items():
      at = [step for step, _ in curve]
      if steps.setdefault((name, metric), at) != at:
        raise DataError(f"{name}: {metric} was measured at other steps with seed {run['seed']}")


def last(runs: Sequence[Run], name: str, metric: str = NTP) -> dict[int, float]:
  """Seed -> a metric at the end of training; empty where the training has no such metric."""
  return {
    run["seed"]: run["curves"][metric][-1][1]
    for run in runs
    if run["run"] == name and metric in run["curves"]
  }


def mean(runs: Sequence[Run], name: str, metric: str = NTP) -> Interval | None:
  """`last`, the mean of the seeds with the least and the most; None without that metric."""
  found = last(runs, name, metric)
  return spread(list(found.values())) if found else None


def above(runs: Sequence[Run], name: str, reference: str, metric: str = NTP) -> Interval:
  """By how much a training ends above another, as a share of it: the mean of the seeds, the least, the most.

  Raises:
    ValueError: they have other seeds.
  """
  ours, theirs = last(runs, name, metric), last(runs, reference, metric)
  if ours.keys() != theirs.keys():
    raise ValueError(f"{name} has seeds {sorted(ours)}, {reference} {sorted(theirs)}")
  return spread([ours[seed] / theirs[seed] - 1 for seed in sorted(ours)])
