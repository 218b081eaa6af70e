"""Tables and the figure of what `reproduce.sh` records.

python experiments/owt_wiki/tables.py [FOLDER] --picture=samples.png
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import sys

import numpy as np

from sbdjax import bootstrap
from sbdjax.evals import markdown, pareto
from sbdjax.evals.any_order_runs import (
  REPEATS,
  SPELLING,
  AnyOrderRuns,
  quality_of,
  setting,
  texts_of,
)

HERE = pathlib.Path(__file__).resolve().parent
# One forward of the masked-diffusion models runs five blocks, one of the self-speculative model six.
BLOCKS = {"MDM": 5, "SSMD": 6, "SDTT1": 5, "SDTT2": 5}
TRUNK = "TRUNK"  # of SSMD, alone
# Of `--together`, by its own names.
SCHEDULES = {f"trunk alone, {kind} steps": kind for kind in ("cosine", "linear")}
WEBTEXT = {"before": "as trained on Wikipedia", "after": "after 500 updates on WebText"}
JUDGES = {"judge": "NLL, judge trained here", "second_judge": "NLL, SmolLM2"}
SEEDS = (0, 1, 2)
SEED = 0  # of what was trained once


@functools.cache
def runs_of(
  folder: pathlib.Path = HERE,
  labels: tuple[str, ...] = tuple(BLOCKS),
  seeds: tuple[int, ...] = SEEDS,
) -> AnyOrderRuns:
  """The records of a folder; SDTT was trained with `SEED` alone."""
  qualities = JUDGES | {"likelihood": "likelihood of held-out text"}
  return AnyOrderRuns(folder, {x: BLOCKS[x] for x in labels}, seeds, qualities)


@functools.cache
def beside_trunk(folder: pathlib.Path = HERE) -> AnyOrderRuns:
  """The same by likelihood alone, the trunk of SSMD as the baseline: what speculation saves, training apart."""
  return AnyOrderRuns(folder, {TRUNK: 5, "SSMD": 6}, SEEDS, {"likelihood": "likelihood"})


@functools.cache
def on_webtext(when: str, trunk: str) -> AnyOrderRuns:
  """WebText under SSMD and under its trunk alone, with steps of one of `SCHEDULES`; `when` as in `WEBTEXT`."""
  return AnyOrderRuns(
    HERE / "webtext" / when, {trunk: 5, "SSMD": 6}, seeds=(SEED,), qualities={"likelihood": "likelihood"},
    names={trunk: f"its trunk alone ({SCHEDULES[trunk]} steps)"},
  )  # fmt: skip


def webtext() -> str:
  """WebText under SSMD, and what its trunk alone costs at that likelihood with either schedule."""
  rows = []
  for when, name in WEBTEXT.items():
    runs = [on_webtext(when, trunk) for trunk in SCHEDULES]
    cells = [x.cells("likelihood", "SSMD", SEED) for x in runs]
    for x in runs[0].held_out("SSMD", SEED):
      (cost,) = runs[0].cost_of("SSMD", [x["mean_nfe"]])
      at = setting(x)
      rows.append(
        (name, at, f"{cost:.1f}", runs[0].loss_of(x).shown(3), *(found[at] for found in cells))
      )
  names = [f"{kind} steps" for kind in SCHEDULES.values()]
  head = (
    "SSMD", "setting", "cost", "nats per token of WebText", f"its own trunk's cost / its own: {names[0]}", *names[1:],
  )  # fmt: skip
  return markdown.table(head, rows)


def on_webtext_in_short() -> str:
  """What the trunk costs on WebText, in words."""
  return "\n".join(
    f"* SSMD {name}, equal likelihood: {on_webtext(when, trunk).costs('likelihood', 'SSMD')}."
    for when, name in WEBTEXT.items()
    for trunk in SCHEDULES
  )


def limit(label: str) -> bootstrap.Interval:
  """Masked diffusion with one token per forward, nats per token of held-out text; mean, least and most of the seeds."""
  runs = runs_of()
  return bootstrap.spread([runs.loss_of(runs.any_order(label, seed)).value for seed in SEEDS])


def _bound(name: str) -> dict:
  """The record of one token per forward in a file of one model."""
  return next(x for x in runs_of().lines(name) if "mean_nfe" not in x)


def mdm_weighted() -> bootstrap.Interval:
  """`limit` of masked diffusion with the weights of the self-speculative loss."""
  return runs_of().loss_of(_bound("weighting.jsonl"))


def ssmd_trained_again() -> bootstrap.Interval:
  """`limit` of the self-speculative model that began from the same base as that of `mdm_weighted`."""
  return runs_of().loss_of(_bound("search.jsonl"))


def trunk_gain() -> bootstrap.Interval:
  """`mdm_weighted` - `ssmd_trained_again`, nats per token, text by text: what the trunk gains beside the weights."""
  ours, theirs = (texts_of(_bound(name)) for name in ("search.jsonl", "weighting.jsonl"))
  return bootstrap.ratio_of_sums(np.subtract(ours.over, theirs.over).tolist(), ours.under)


def trunk() -> str:
  """Held-out text under SSMD, and what MDM and SSMD's own trunk cost at that likelihood."""
  runs, name = runs_of(), "likelihood"
  rows = []
  for seed in SEEDS:
    by_mdm, by_trunk = (x.cells(name, "SSMD", seed) for x in (runs, beside_trunk()))
    for x in runs.held_out("SSMD", seed):
      (cost,) = runs.cost_of("SSMD", [x["mean_nfe"]])
      at = setting(x)
      rows.append((seed, at, f"{cost:.1f}", runs.loss_of(x).shown(3), by_mdm[at], by_trunk[at]))
  head = (
    "seed", "SSMD", "cost", "nats per token of held-out text", "MDM's cost / its own", "its own trunk's cost / its own",
  )  # fmt: skip
  return markdown.table(head, rows)


def trunk_costs() -> bootstrap.Interval:
  """What SSMD's own trunk costs at the likelihood of its cheapest setting / what that costs; mean, least and most of the seeds."""
  found = [beside_trunk().ratios("likelihood", "SSMD", seed)[0] for seed in SEEDS]
  return bootstrap.spread([x.value for x in found if x is not None])


def _pairs(folder: pathlib.Path) -> list[tuple[str, AnyOrderRuns]]:
  """Every model beside masked diffusion, and the records that compare the two."""
  return [
    (label, runs_of(folder, ("MDM", label), SEEDS if label == "SSMD" else (SEED,)))
    for label in BLOCKS
    if label != "MDM"
  ]


def findings(folder: pathlib.Path = HERE) -> str:
  """What masked diffusion costs at equal quality, in words."""
  return "\n".join(
    f"* {label}, equal {name}: {runs.costs(quality, label)}."
    for label, runs in _pairs(folder)
    for quality, name in runs.qualities.items()
  )


def young() -> str:
  """How far the samples are from text, in words: of one training, since seeds have judges of their own."""
  best = {
    label: min(quality_of(x, "judge") for x in runs_of().sampled(label, SEED)).shown()
    for label in ("SSMD", "MDM")
  }
  return (
    f"**These models do not read well**: in the first training, under its own judge, their samples have at best {best['SSMD']} (SSMD) and "
    f"{best['MDM']} (MDM) nats per token, held-out text {quality_of(runs_of().texts(), 'judge').shown()}."
  )


def in_short() -> str:
  """A sentence for the page of all results."""
  return (
    "web text at small scale (Wikipedia, a BPE of its own, three trainings each), by likelihood of held-out text: "
    f"{dict(_pairs(HERE))['SSMD'].costs('likelihood', 'SSMD', brief=True)}. **Most of that is training**: at the likelihood of SSMD's cheapest setting its "
    f"own trunk alone costs {trunk_costs().shown()} times as much. On WebText, after 500 updates on some of it (one training, intervals over texts), "
    f"{on_webtext('after', next(iter(SCHEDULES))).costs('likelihood', 'SSMD', brief=True)}. {young()}"
  )


def comparison(folder: pathlib.Path = HERE) -> str:
  """Cost at equal quality, of every model beside masked diffusion."""
  return "\n\n".join(f"{label}:\n\n{runs.comparison(label)}" for label, runs in _pairs(folder))


def samples(folder: pathlib.Path = HERE) -> str:
  """All samples."""
  return runs_of(folder).samples(dict([SPELLING, REPEATS]) | JUDGES)


def search(folder: pathlib.Path = HERE) -> str:
  """Of all pairs of inner loops and windows those that no cheaper one equals in likelihood."""
  runs, (grid, best) = runs_of(folder), _searched(folder)
  rows = [(setting(x), f"{x['mean_nfe']:.1f}", runs.loss_of(x).shown(3)) for x in best]
  return markdown.table((f"best of {len(grid)}", "NFE", "nats per token"), rows)


def _searched(folder: pathlib.Path = HERE) -> tuple[list[dict], list[dict]]:
  """All pairs, and those of `search` by their NFE."""
  grid = [x for x in runs_of(folder).lines("search.jsonl") if x.get("dtau", 1.0) < 1]
  on_front = pareto.front([-x["mean_nfe"] for x in grid], [x["nats_per_token"] for x in grid])
  return grid, sorted((x for x, on in zip(grid, on_front, strict=True) if on), key=_nfe)


def table_2_on_front() -> tuple[int, int]:
  """How many settings of the paper's Table 2 were searched, and how many of these no cheaper one equals."""
  known = {setting(x) for x in runs_of().held_out("SSMD", SEED)}
  return tuple(sum(setting(x) in known for x in found) for found in _searched())


def searched_pairs() -> int:
  """How many pairs of N and dtau were searched."""
  return len(_searched()[0])


def searched_differs() -> float:
  """The largest difference between the two trainings at one setting, nats per token."""
  first = {setting(x): x["nats_per_token"] for x in runs_of().held_out("SSMD", SEED)}
  grid, _ = _searched()
  again = {setting(x): x["nats_per_token"] for x in grid}
  return max(abs(first[at] - again[at]) for at in first)


def _nfe(line: dict) -> float:
  return line["mean_nfe"]


def draw(path: pathlib.Path, folder: pathlib.Path = HERE) -> None:
  """Both judges and the likelihood against what was run. Bars: 95 % bootstrap over texts."""
  runs_of(folder).draw(path, "cost, forwards of five blocks")


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  add = parser.add_argument
  add("folder", type=pathlib.Path, nargs="?", default=HERE, help="of the records")
  add("--picture", type=pathlib.Path, help="both judges and the likelihood against cost")
  args = parser.parse_args(argv)
  shown = [findings, comparison, samples]
  if (args.folder / "search.jsonl").is_file():
    shown.append(search)
  print(*(table(args.folder) for table in shown), sep="\n\n")
  if args.picture:
    draw(args.picture, args.folder)
  return 0


if __name__ == "__main__":
  sys.exit(main())
