"""Tables and the figure of what `reproduce.sh` records.

python experiments/owt_wiki/tables.py FOLDER --picture=samples.png
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from sbdjax.evals import equal_quality
from sbdjax.evals.any_order_runs import AnyOrderRuns

# All models run as many blocks in a forward, so what a text costs is its NFE.
BLOCKS = {"MDM": 6, "SSMD": 6, "SDTT1": 6, "SDTT2": 6}
JUDGES = {"judge": "NLL, judge trained here", "second_judge": "NLL, SmolLM2"}
SEED = 0


def runs_of(folder: pathlib.Path) -> AnyOrderRuns:
  """The records of a folder."""
  qualities = JUDGES | {"likelihood": "likelihood of held-out text"}
  return AnyOrderRuns(folder, BLOCKS, seeds=(SEED,), qualities=qualities)


def findings(runs: AnyOrderRuns) -> str:
  """What masked diffusion needs at equal quality, in words."""
  told = []
  for quality, name in runs.qualities.items():
    for label in (label for label in BLOCKS if label != runs.baseline):
      found = [x for x in runs.ratios(quality, label, SEED) if x is not None]
      if not found:
        told.append(f"* By {name} {runs.baseline} reaches no setting of {label}.")
        continue
      above, count = runs.above_one(quality, label)
      told.append(
        f"* At equal {name} {runs.baseline} needs {equal_quality.ends_shown(found)} times the NFE of {label}; "
        f"{above} of {count} intervals lie above 1."
      )
  return "\n".join(told)


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  add = parser.add_argument
  add("folder", type=pathlib.Path, help="of points.jsonl and likelihood.jsonl")
  add("--picture", type=pathlib.Path, help="both judges and the likelihood against NFE")
  args = parser.parse_args(argv)
  runs = runs_of(args.folder)
  compared = (runs.comparison(label) for label in BLOCKS if label != runs.baseline)
  print(findings(runs), *compared, runs.samples(JUDGES), sep="\n\n")
  if args.picture:
    runs.draw(args.picture, "NFE")
  return 0


if __name__ == "__main__":
  sys.exit(main())
