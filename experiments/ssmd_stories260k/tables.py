"""Tables and the figure of this folder's page, from its records.

python experiments/ssmd_stories260k/tables.py
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from sbdjax.evals.any_order_runs import SPELLING, AnyOrderRuns, quality_of

# One forward of the masked-diffusion model runs five blocks, one of the other six.
RUNS = AnyOrderRuns(
  pathlib.Path(__file__).resolve().parent,
  blocks={"MDM": 5, "SSMD": 6},
  seeds=(0, 1),
  qualities={
    "spelling": "spelling",
    "judge": "NLL under the judge",
    "likelihood": "likelihood of held-out text",
  },
)


def comparison() -> str:
  """NFE at equal quality."""
  return RUNS.comparison("SSMD")


def samples() -> str:
  """All samples."""
  return RUNS.samples(dict([SPELLING]) | {"judge": "judge NLL"})


def findings() -> str:
  """What the tables say, in words."""
  told = [f"* Equal {name}: {RUNS.costs(q, 'SSMD')}." for q, name in RUNS.qualities.items()]
  told.append(
    f"* **These models do not read well**: at best {RUNS.best('SSMD').shown()} of the words are spelt right by SSMD and "
    f"{RUNS.best('MDM').shown()} by MDM, of held-out text {quality_of(RUNS.texts(), 'spelling').shown()}."
  )
  return "\n".join(told)


def in_short() -> str:
  """A sentence for the page of all results."""
  return (
    f"the same from a pretrained model, by likelihood of held-out text: {RUNS.costs('likelihood', 'SSMD')}; **young models**, at "
    f"best {RUNS.best('SSMD').shown(0, 100)} % of the words are spelt right"
  )


def draw(path: pathlib.Path) -> None:
  """Spelling, judge NLL and likelihood against what was run. Bars: 95 % bootstrap over texts."""
  RUNS.draw(path, "cost, forwards of five blocks")


def main(argv: list[str] | None = None) -> int:
  argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(argv)
  print(comparison(), samples(), sep="\n\n")
  return 0


if __name__ == "__main__":
  sys.exit(main())
