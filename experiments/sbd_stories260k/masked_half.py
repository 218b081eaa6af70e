"""Tables of what the masked half of SBD learns from, from this folder's records.

python experiments/sbd_stories260k/masked_half.py
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import sys
from typing import Any

from sbdjax import bootstrap
from sbdjax.bootstrap import Interval
from sbdjax.evals import markdown, paired

HERE = pathlib.Path(__file__).resolve().parent
DRAFTS = "runs/drafts"  # where reproduce.sh trains it
SHIPPED, ORIGINAL = "stories260K-sbd", "stories260K"
RECORDS = ("drafts.jsonl", "points.jsonl")  # of the one and of the other weights


@functools.cache
def short_runs() -> dict[str, list[dict[Any, dict[str, Any]]]]:
  """What the masked half learned from -> for every seed (gamma, or "ar", "verified") -> record."""
  found: dict[str, dict[str, dict[Any, dict[str, Any]]]] = {}
  for row in paired.read(HERE / "training.jsonl"):
    training, seed = row["settings"]["sweep"]["label"].rsplit(", ", 1)
    decoder = row["settings"]["decoder"]
    way = decoder.get("gamma", "ar" if decoder["name"] == "ar" else "verified")
    found.setdefault(training, {}).setdefault(seed, {})[way] = row
  return {training: list(seeds.values()) for training, seeds in found.items()}


def training() -> str:
  """Short runs that differ in what the masked half learns from: means over seeds."""
  rows = []
  for name, seeds in short_runs().items():
    costs = (
      [paired.nll_difference(seed[gamma], seed["ar"]).value for seed in seeds]
      for gamma in (0.0, 0.1, 0.4)
    )
    rows.append(
      (
        name,
        bootstrap.spread([seed["ar"]["judge_nll"] for seed in seeds]).shown(3),
        *(bootstrap.spread(cost).shown(0, 100, "+", " %") for cost in costs),
        bootstrap.spread([seed[0.4]["tpf"] for seed in seeds]).shown(),
        bootstrap.spread([seed["verified"]["tpf"] for seed in seeds]).shown(),
      )
    )
  head = (
    "masked half learns from", "AR judge NLL", "gamma 0", "gamma 0.1", "gamma 0.4",
    "tokens per forward at 0.4", "verified, fan-out",
  )  # fmt: skip
  return markdown.table(head, rows)


def training_texts() -> str:
  """Diversity and repetition of the short runs' texts: means over seeds."""
  ways = {"ar": "AR", 0.0: "gamma 0", 0.1: "gamma 0.1", 0.4: "gamma 0.4"}
  rows = [
    (
      name,
      said,
      bootstrap.spread([seed[way]["judge_nll"] for seed in seeds]).shown(3),
      bootstrap.spread([seed[way]["distinct_2"] for seed in seeds]).shown(3),
      bootstrap.spread([seed[way]["repetition"] for seed in seeds]).shown(3),
    )
    for name, seeds in short_runs().items()
    for way, said in ways.items()
  ]
  head = ("masked half learns from", "decoding", "judge NLL", "distinct-2", "repeats")
  return markdown.table(head, rows)


def training_findings() -> str:
  """What the table of short runs says, in words."""
  whole, random = "all rows masked whole", "masks at random"
  drafted = {
    name: bootstrap.spread([seed["verified"]["tpf"] for seed in short_runs()[name]]).shown(2)
    for name in (whole, random)
  }
  filled = {
    name: bootstrap.spread([seed[0.0]["judge_nll"] for seed in short_runs()[name]]).shown(2)
    for name in (whole, random)
  }
  return (
    "The two ways of decoding want opposite masks. Verified decoding, which asks for whole blocks, has "
    f"{drafted[whole]} tokens per forward with all rows masked whole and {drafted[random]} with masks at random; "
    "reveal rules, which fill what is left of a block, write text of judge NLL "
    f"{filled[whole]} at gamma 0 with rows masked whole and {filled[random]} with masks at random. In every "
    "column the seeds of half teacher overlap those of labels alone."
  )


@functools.cache
def long_runs() -> dict[str, list[dict[str, Any]]]:
  """Checkpoint -> records, of the shipped weights and of the run on rows masked whole."""
  rows = [row for name in RECORDS for row in paired.read(HERE / name)]
  return {
    name: [row for row in rows if row["settings"]["sweep"]["checkpoint"] == name]
    for name in (DRAFTS, SHIPPED)
  }


def of(checkpoint: str, **decoder: Any) -> dict[str, Any]:
  """A point of a long run."""
  rows = long_runs()[checkpoint]
  return markdown.find(rows, rows[0]["settings"]["sweep"]["label"], **decoder)


VERIFIED: dict[str, dict[str, Any]] = {
  "verified, fused, k = 4": {"drafting": "fused", "block_size": 4},
  "verified, fan-out, k = 8": {"drafting": "fan_out", "block_size": 8, "candidates": False},
  "verified, fan-out and second choices, k = 8": {
    "drafting": "fan_out", "block_size": 8, "candidates": True,
  },
}  # fmt: skip


BOUNDS: dict[str, dict[str, Any]] = {
  f"SBD, entropy bound, gamma = {gamma:g}": {"rule": "eb_entropy", "gamma": gamma, "block_size": 8}
  for gamma in (0.0, 0.1, 0.4)
}


def same_prompts() -> bool:
  """Whether the original wrote the same texts in both records, so that their prompts are the same."""
  found = [markdown.find(paired.read(HERE / name), ORIGINAL, name="ar") for name in RECORDS]
  return paired.same_text(*found)


def drafts() -> str:
  """Rows masked whole for as long as the first run of the shipped weights, beside these."""
  rows: list[tuple[Any, ...]] = []
  for name, decoder in {"AR": {"name": "ar"}, **VERIFIED, **BOUNDS}.items():
    for checkpoint, weights in ((DRAFTS, "rows masked whole"), (SHIPPED, "shipped")):
      row, own = of(checkpoint, **decoder), of(checkpoint, name="ar")
      rows.append(
        (
          name,
          weights,
          paired.tokens_per_forward(row).shown(2),
          paired.judge_nll(row).shown(3),
          markdown.against(row, own),
          f"{row['distinct_2']:.3f}",
          paired.repetition(row).shown(3),
        )
      )
  head = (
    "decoding", "weights", "tokens per forward", "judge NLL", "against AR of the same weights", "distinct-2",
    "repeats",
  )  # fmt: skip
  return markdown.table(head, rows)


def fan_out(checkpoint: str = DRAFTS, candidates: bool = False) -> Interval:
  """Tokens per forward of verified decoding with fan-out, k = 8."""
  row = of(checkpoint, drafting="fan_out", block_size=8, candidates=candidates)
  return paired.tokens_per_forward(row)


def ar_cost() -> Interval:
  """Judge NLL of AR with rows masked whole above that of AR with the shipped weights."""
  return paired.nll_difference(*(of(checkpoint, name="ar") for checkpoint in (DRAFTS, SHIPPED)))


def drafts_findings() -> str:
  """What the table of the long run says, in words."""
  if not same_prompts():
    raise ValueError("the original wrote other texts in one of the records: its prompts are others")
  speed = {
    key: [fan_out(key, candidates).shown(2) for candidates in (False, True)]
    for key in (DRAFTS, SHIPPED)
  }
  ntp = markdown.percent(ar_cost())
  return (
    f"Verified decoding has {speed[DRAFTS][0]} tokens per forward with fan-out and {speed[DRAFTS][1]} "
    f"with second choices, where the shipped weights have {speed[SHIPPED][0]} and {speed[SHIPPED][1]} after "
    f"more than twice as many updates. The AR text that it reproduces is {ntp} above theirs in judge NLL, and reveal "
    "rules are useless with these weights. They are not shipped."
  )


def main(argv: list[str] | None = None) -> int:
  argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(argv)
  print(training(), training_texts(), training_findings(), drafts(), sep="\n\n")
  return 0


if __name__ == "__main__":
  sys.exit(main())
