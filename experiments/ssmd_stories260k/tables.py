"""Tables and the figure of this folder's page, from its records.

python experiments/ssmd_stories260k/tables.py
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from sbdjax.evals import equal_quality, markdown
from sbdjax.evals.any_order_runs import SPELLING, AnyOrderRuns, nats, quality_of

HERE = pathlib.Path(__file__).resolve().parent
QUALITIES = {
  "spelling": "spelling",
  "judge": "NLL under the judge",
  "likelihood": "likelihood of held-out text",
}
# One forward of the masked-diffusion model runs five blocks, one of the other six.
RUNS = AnyOrderRuns(HERE, blocks={"MDM": 5, "SSMD": 6}, seeds=(0, 1), qualities=QUALITIES)
ABLATED = {
  "SSMD": "SSMD",
  "no_residual": "without output residual",
  "two_causal": "two causal blocks",
}
ABLATIONS = AnyOrderRuns(
  HERE,
  blocks={"MDM": 5, "SSMD": 6, "no_residual": 6, "two_causal": 7},
  seeds=(0,),
  qualities=QUALITIES,
)
# The setting that the table of ablations shows.
SHOWN = {"n_inner": 1, "dtau": 0.083}


def ratios(quality: str, seed: int) -> list:
  """What masked diffusion costs at the quality of each self-speculative setting / its own cost."""
  return RUNS.ratios(quality, "SSMD", seed)


def comparison() -> str:
  """NFE at equal quality."""
  return RUNS.comparison("SSMD")


def samples() -> str:
  """All samples."""
  return RUNS.samples(dict([SPELLING]) | {"judge": "judge NLL"})


def ablations() -> str:
  """The full model beside both ablations: drafts kept, quality, and what MDM costs at equal quality."""
  rows = []
  for label, name in ABLATED.items():
    sampled = next(x for x in ABLATIONS.sampled(label, 0) if SHOWN.items() <= _decoder(x).items())
    held_out = next(x for x in ABLATIONS.held_out(label, 0) if SHOWN.items() <= x.items())
    cost = ABLATIONS.cost_of(label, [sampled["nfe"]])[0]
    rows.append(
      (
        name,
        f"{sampled['acceptance']:.2f}",
        f"{cost:.1f}",
        nats(held_out).shown(3),
        quality_of(sampled, "judge").shown(2),
        *(equal_quality.ends_shown(ABLATIONS.ratios(x, label, 0)) for x in QUALITIES),
      )
    )
  names = [f"at equal {name}" for name in QUALITIES.values()]
  head = (
    "seed 0", "accepted", "cost", "nats per token of held-out text", "judge NLL",
    f"MDM's cost / its own, all settings: {names[0]}", *names[1:],
  )  # fmt: skip
  return markdown.table(head, rows)


def above_one(label: str) -> tuple[int, int]:
  """Of the comparisons of a model with MDM (seed 0): whole intervals above 1, and all."""
  counts = [ABLATIONS.above_one(quality, label) for quality in QUALITIES]
  return sum(above for above, _ in counts), sum(every for _, every in counts)


def _decoder(line: dict) -> dict:
  return line["settings"]["decoder"]


def findings() -> str:
  """What the tables say, in words."""
  told = []
  for quality, name in RUNS.qualities.items():
    ends = [equal_quality.ends_shown(ratios(quality, seed)) for seed in RUNS.seeds]
    above, count = RUNS.above_one(quality, "SSMD")
    told.append(
      f"* At equal {name} masked diffusion costs {ends[0]} times as much with one seed, {ends[1]} with the other; "
      f"{above} of {count} intervals lie above 1."
    )
  told.append(
    f"* **These models do not read well**: at best {RUNS.best('SSMD').shown()} of the words are spelt right by SSMD and "
    f"{RUNS.best('MDM').shown()} by MDM, of held-out text {quality_of(RUNS.texts(), 'spelling').shown()}."
  )
  return "\n".join(told)


def in_short() -> str:
  """A sentence for the page of all results."""
  ends = [equal_quality.ends_shown(ratios("likelihood", seed)) for seed in RUNS.seeds]
  above, count = RUNS.above_one("likelihood", "SSMD")
  return (
    f"the same from a pretrained model, with paired intervals: at equal likelihood masked diffusion costs {ends[0]} times as "
    f"much with one seed and {ends[1]} with the other, {above} of {count} intervals above 1; **young models**, at best "
    f"{RUNS.best('SSMD').shown(0, 100)} % of the words are spelt right"
  )


def draw(path: pathlib.Path) -> None:
  """Spelling, judge NLL and likelihood against what was run. Bars: 95 % bootstrap over texts."""
  RUNS.draw(path, "cost, forwards of five blocks")


def main(argv: list[str] | None = None) -> int:
  argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(argv)
  print(comparison(), ablations(), samples(), sep="\n\n")
  return 0


if __name__ == "__main__":
  sys.exit(main())
