"""Tables and the figure of what `reproduce.sh` records.

python experiments/owt_wiki/tables.py [FOLDER] --picture=samples.png
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import sys

from sbdjax.evals import equal_quality, markdown, pareto
from sbdjax.evals.any_order_runs import SPELLING, AnyOrderRuns, nats, setting

HERE = pathlib.Path(__file__).resolve().parent
# One forward of the masked-diffusion models runs five blocks, one of the self-speculative model six.
BLOCKS = {"MDM": 5, "SSMD": 6, "SDTT1": 5, "SDTT2": 5}
JUDGES = {"judge": "NLL, judge trained here", "second_judge": "NLL, SmolLM2"}
SEED = 0


@functools.cache
def runs_of(folder: pathlib.Path = HERE) -> AnyOrderRuns:
  """The records of a folder."""
  qualities = JUDGES | {"likelihood": "likelihood of held-out text"}
  return AnyOrderRuns(folder, BLOCKS, seeds=(SEED,), qualities=qualities)


def _others(runs: AnyOrderRuns) -> list[str]:
  return [label for label in runs.blocks if label != runs.baseline]


def findings(folder: pathlib.Path = HERE) -> str:
  """What masked diffusion costs at equal quality, in words."""
  runs, told = runs_of(folder), []
  for quality, name in runs.qualities.items():
    for label in _others(runs):
      found = [x for x in runs.ratios(quality, label, SEED) if x is not None]
      if not found:
        told.append(f"* By {name} {runs.baseline} reaches no setting of {label}.")
        continue
      above, count = runs.above_one(quality, label)
      told.append(
        f"* At equal {name} {runs.baseline} costs {equal_quality.ends_shown(found)} times as much as {label}; "
        f"{above} of {count} intervals lie above 1."
      )
  return "\n".join(told)


def comparison(folder: pathlib.Path = HERE) -> str:
  """Cost at equal quality, of every model beside masked diffusion."""
  runs = runs_of(folder)
  return "\n\n".join(f"{label}:\n\n{runs.comparison(label)}" for label in _others(runs))


def samples(folder: pathlib.Path = HERE) -> str:
  """All samples."""
  return runs_of(folder).samples(dict([SPELLING]) | JUDGES)


def search(folder: pathlib.Path = HERE) -> str:
  """Of all pairs of inner loops and windows those that no cheaper one equals in likelihood."""
  lines = [x for x in runs_of(folder).lines("search.jsonl") if x.get("dtau", 1.0) < 1]
  best = pareto.front([-x["mean_nfe"] for x in lines], [x["nats_per_token"] for x in lines])
  shown = sorted((x for x, on_front in zip(lines, best, strict=True) if on_front), key=_nfe)
  rows = [(setting(x), f"{x['mean_nfe']:.1f}", nats(x).shown(3)) for x in shown]
  return markdown.table((f"best of {len(lines)}", "NFE", "nats per token"), rows)


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
  print(*(table(args.folder) for table in (findings, comparison, samples, search)), sep="\n\n")
  if args.picture:
    draw(args.picture, args.folder)
  return 0


if __name__ == "__main__":
  sys.exit(main())
