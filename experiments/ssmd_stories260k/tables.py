"""Tables and the figure of this folder's page, from its records.

python experiments/ssmd_stories260k/tables.py
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from sbdjax.evals import markdown
from sbdjax.evals.any_order_runs import SPELLING, AnyOrderRuns, quality_of, setting

HERE = pathlib.Path(__file__).resolve().parent
QUALITIES = {
  "spelling": "spelling",
  "judge": "NLL under the judge",
  "likelihood": "likelihood of held-out text",
}
# One forward of the masked-diffusion model runs five blocks, one of the other six.
RUNS = AnyOrderRuns(HERE, {"MDM": 5, "SSMD": 6}, seeds=(0, 1), qualities=QUALITIES)
# Self-speculative models that differ in one part each; the pretrained blocks are the trunk of all of them.
ABLATIONS = {"SSMD": 6, "without output residual": 6, "two causal blocks": 7}
ABLATED = AnyOrderRuns(HERE, {"MDM": 5} | ABLATIONS, seeds=RUNS.seeds, qualities=QUALITIES)
# The setting that the table of ablations shows.
SETTING = "N = 1, Δτ = 0.083"


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


def ablations() -> str:
  """Self-speculative models that differ in one part, at one setting, and at all."""
  rows = []
  for label, blocks in ABLATIONS.items():
    for seed in ABLATED.seeds:
      (drawn,) = [x for x in ABLATED.sampled(label, seed) if setting(x) == SETTING]
      (likely,) = [x for x in ABLATED.held_out(label, seed) if setting(x) == SETTING]
      rows.append(
        (
          label,
          blocks,
          seed,
          ABLATED.loss_of(ABLATED.any_order(label, seed)).shown(),
          f"{drawn['acceptance']:.2f}",
          ABLATED.loss_of(likely).shown(),
          f"{ABLATED.cost_of(label, [likely['mean_nfe']])[0]:.1f}",
          *(ABLATED.cells(quality, label, seed)[SETTING] for quality in ("likelihood", "judge")),
        )
      )
  head = (
    "model", "blocks", "seed", "trunk alone, one token per forward, nats per token", "accepted", "nats per token", "cost",
    "MDM's cost / its own: at equal likelihood", "at equal NLL under the judge",
  )  # fmt: skip
  return markdown.table(head, rows)


def against_ablations() -> str:
  """What came out of the ablations, in words."""
  return "\n".join(
    f"* {label}, equal {QUALITIES[quality]}: {ABLATED.costs(quality, label)}."
    for label in ABLATIONS
    if label != "SSMD"
    for quality in ("likelihood", "judge")
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
