"""Tables and the figure of this folder's page, from its records.

python experiments/owt_wiki/tables.py
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from sbdjax.evals import equal_quality
from sbdjax.evals.any_order_runs import AnyOrderRuns, columns, quality_of

RUNS = AnyOrderRuns(
  pathlib.Path(__file__).resolve().parent,
  blocks={"MDM": 6, "SSMD": 6, "SDTT1": 6, "SDTT2": 6},  # all have as many
  seeds=(0,),
  qualities={
    "judge": "NLL, judge trained here",
    "second_judge": "NLL, SmolLM2",
    "likelihood": "likelihood of held-out text",
  },
)
_NAMES = {
  "SSMD": "self-speculation",
  "SDTT1": "SDTT, round 1",
  "SDTT2": "SDTT, round 2",
}


def comparison() -> str:
  """NFE of the self-speculative model, and of masked diffusion at equal quality."""
  return RUNS.comparison("SSMD")


def distilled() -> str:
  """The same of the last round of SDTT."""
  return RUNS.comparison("SDTT2")


def samples() -> str:
  """All samples."""
  return RUNS.samples({"judge": "judge NLL", "second_judge": "NLL under SmolLM2"})


def findings() -> str:
  """What the tables say, in words."""
  told = []
  for quality, name in RUNS.qualities.items():
    for label, model in _NAMES.items():
      found = [x for x in RUNS.ratios(quality, label, RUNS.seeds[0]) if x is not None]
      if not found:
        told.append(f"* By {name} masked diffusion reaches no setting of {model}.")
        continue
      above, count = RUNS.above_one(quality, label)
      told.append(
        f"* At equal {name} masked diffusion needs {equal_quality.ends_shown(found)} times the NFE of {model}; "
        f"{above} of {count} intervals lie above 1."
      )
  held_out = [quality_of(RUNS.texts(), judge).shown() for judge in ("judge", "second_judge")]
  best = [
    min(quality_of(x, judge) for x in RUNS.sampled("SSMD", RUNS.seeds[0])).shown()
    for judge in ("judge", "second_judge")
  ]
  told.append(
    f"* **These models do not read well**: NLL under both judges is at best {best[0]} and {best[1]} nats per token, of held-out "
    f"text {held_out[0]} and {held_out[1]}."
  )
  return "\n".join(told)


def in_short() -> str:
  """A sentence for the page of all results."""
  found = equal_quality.ends_shown(RUNS.ratios("likelihood", "SSMD", RUNS.seeds[0]))
  above, count = RUNS.above_one("likelihood", "SSMD")
  return (
    f"at equal likelihood masked diffusion needs {found} times the NFE, {above} of {count} intervals above 1; SmolLM2 judges the "
    "samples as well; **young models**"
  )


def tokens_of_judges() -> tuple[int, int]:
  """How many tokens the held-out texts have for each judge."""
  first, second = (sum(columns(RUNS.texts(), judge)[1]) for judge in ("judge", "second_judge"))
  return int(first), int(second)


def draw(path: pathlib.Path) -> None:
  """Both judges' NLL and the likelihood against NFE. Bars: 95 % bootstrap over texts."""
  RUNS.draw(path, "NFE")


def main(argv: list[str] | None = None) -> int:
  argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(argv)
  print(findings(), comparison(), distilled(), samples(), sep="\n\n")
  return 0


if __name__ == "__main__":
  sys.exit(main())
