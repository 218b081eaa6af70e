"""The table of this folder's page, from its record.

python experiments/sbd_text8/tables.py
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

from sbdjax.evals import markdown

HERE = pathlib.Path(__file__).resolve().parent


def last() -> dict[tuple[str, str], float]:
  """(run, metric) -> its last value, bits per character."""
  lines = map(json.loads, (HERE / "curves.jsonl").read_text().splitlines())
  return {(x["run"], x["metric"]): x["value"] for x in lines}


def losses() -> str:
  """Held-out losses at the end, and what the masked term costs the next-token one."""
  found = last()
  plain, sbd = (found[run, "eval/ntp_loss"] for run in ("NTP", "SBD"))
  rows = [
    ("NTP", f"{plain:.3f}", ""),
    (
      "SBD",
      f"{sbd:.3f} ({100 * (sbd / plain - 1):+.1f} %)",
      f"{found['SBD', 'eval/masked_loss']:.3f}",
    ),
  ]
  head = ("training", "NTP, bits per character", "masked term, bits per masked character")
  return markdown.table(head, rows)


def main(argv: list[str] | None = None) -> int:
  argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(argv)
  print(losses())
  return 0


if __name__ == "__main__":
  sys.exit(main())
