"""The table of this folder's page, from its record.

python experiments/sbd_text8/tables.py
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from sbdjax.evals import markdown, seed_runs

HERE = pathlib.Path(__file__).resolve().parent


def losses() -> str:
  """Held-out losses at the end, and what the masked term costs the next-token one."""
  runs = seed_runs.read(HERE / "curves.jsonl")
  rows = []
  for run in ("NTP", "SBD"):
    plain, masked = (seed_runs.mean(runs, run, x) for x in (seed_runs.NTP, "eval/masked_loss"))
    assert plain is not None
    above = None if run == "NTP" else seed_runs.above(runs, run, "NTP").shown(1, 100, "+", " %")
    rows.append((run, plain.shown(3), above, None if masked is None else masked.shown(3)))
  head = (
    "training", "NTP, bits per character", "against NTP", "masked term, bits per masked character",
  )  # fmt: skip
  return markdown.table(head, rows)


def main(argv: list[str] | None = None) -> int:
  argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(argv)
  print(losses())
  return 0


if __name__ == "__main__":
  sys.exit(main())
