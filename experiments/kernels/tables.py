"""Tables of this folder's page, from its records.

python experiments/kernels/tables.py      # prints them; experiments/tables.py writes them
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import sys
from typing import Any

from sbdjax.evals import markdown

HERE = pathlib.Path(__file__).resolve().parent
KIB, MIB = 2**10, 2**20


def lines(name: str) -> list[dict[str, Any]]:
  """Records of a file of this folder."""
  return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


def ahead_of_time() -> str:
  """aot.jsonl: every program compiled for devices that are not here."""
  rows = []
  for r in lines("aot.jsonl"):
    kernels = (
      f"{k['name'].removeprefix('sbdjax_')} {k['registers']}, {k['shared_bytes'] / KIB:.0f}"
      for k in r["kernels"]
    )
    told = "; ".join(kernels) or "-"
    rows.append((r["job"], r["device"], f"{r['temporary_bytes'] / MIB:.1f}", told))
  head = ("program", "device", "temporaries, MiB", "kernels: registers, shared KiB")
  return markdown.table(head, rows)


def compiled() -> tuple[int, int]:
  """(programs without a problem and without spilled registers, all programs) of aot.jsonl."""
  found = [
    not r["problems"] and not any(k.get("spill_bytes") for k in r["kernels"])
    for r in lines("aot.jsonl")
  ]
  return sum(found), len(found)


@functools.cache
def forms() -> dict[tuple[str, str, int], tuple[dict[str, Any], dict[str, Any]]]:
  """(target, model, tokens) -> records of stacked and of separate layers."""
  found: dict[tuple[str, str, int], dict[str, dict[str, Any]]] = {}
  for r in lines("layers_aot.jsonl"):
    found.setdefault((r["target"], r["model"], r["width"]), {})[r["form"]] = r
  return {key: (form["stacked"], form["separate"]) for key, form in sorted(found.items())}


def layers() -> str:
  """layers_aot.jsonl: stacked and separate layers, MiB of a forward."""
  rows = []
  for (target, model, width), both in forms().items():
    mib = lambda key, both=both: " / ".join(_mib(r[key]) for r in both)
    codes = mib("code_bytes") if both[0]["code_bytes"] else "not told"
    copied = (f"{r['copied_bytes'] / MIB:.0f}" for r in both)
    rows.append(
      (_DEVICES[target], f"{model}'s layers", width, f"{both[0]['layer_weight_bytes'] / MIB:.0f}",
       *copied, mib("temporary_bytes"), codes)
    )  # fmt: skip
  head = (
    "device", "model", "k", "weights", "copied: stacked", "copied: separate", "temporaries", "code, MiB",
  )  # fmt: skip
  return markdown.table(head, rows)


_DEVICES = {"h200:1": "NVIDIA H200", "v5e:2x2": "TPU v5 lite"}


def _mib(size: float) -> str:
  """Below 10 MiB with a digit after the point."""
  return f"{size / MIB:.1f}" if size < 10 * MIB else f"{size / MIB:.0f}"


def copied(model: str, width: int) -> float:
  """MiB of separate layers that a TPU's program copies."""
  return forms()["v5e:2x2", model, width][1]["copied_bytes"] / MIB


def code_grows() -> tuple[float, float]:
  """Size of a TPU's program with separate layers / with stacked ones: the smallest and the largest."""
  found = [
    separate["code_bytes"] / stacked["code_bytes"]
    for (target, _, _), (stacked, separate) in forms().items()
    if target == "v5e:2x2"
  ]
  return min(found), max(found)


def main(argv: list[str] | None = None) -> int:
  argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(argv)
  for table in (ahead_of_time, layers):
    print(f"{table.__doc__}\n\n{table()}\n")
  return 0


if __name__ == "__main__":
  sys.exit(main())
