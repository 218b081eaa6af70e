"""How long the 8B step compiles for TPUs: python experiments/scaling/compile_tpu.py [--limit_s=590]

Compiles `llama31_8b_sbd:8` for v5p:2x2x2 with attention by our kernels and in plain XLA, rows of 2,048
and 32,768 tokens (twice as many with the masked half), each in a process that is stopped after the
limit. Adds a line of JSON each to compile_tpu.jsonl: seconds by the clock and of the processor.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import time
from typing import Any

os.environ.update(JAX_PLATFORMS="cpu", JAX_ENABLE_COMPILATION_CACHE="0")
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"

from sbdjax.appending import append_line
from sbdjax.evals import record

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "compile_tpu.jsonl"
TARGET, CONFIG = "v5p:2x2x2", "llama31_8b_sbd:8"


def processor_seconds() -> float:
  """Of all child processes that have ended."""
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  return used.ru_utime + used.ru_stime


def measure(attention: str, length: int, limit_s: float) -> dict[str, Any]:
  """The dry run with this attention; `stopped` where it took longer than the limit."""
  argv = [
    "train", f"--config=preset:{CONFIG}", f"--dry_run={TARGET}", "--json",
    f"--config.attention.backend={attention}", f"--config.data.seq_len={length}",
  ]  # fmt: skip
  wall, cpu = time.perf_counter(), processor_seconds()
  line = {"attention": attention, "length": length, "target": TARGET, "command": argv}
  try:
    done = subprocess.run(
      [sys.executable, "-m", "sbdjax", *argv],
      cwd=HERE.parents[1],
      capture_output=True,
      text=True,
      timeout=limit_s,
    )
  except subprocess.TimeoutExpired:
    return line | {"stopped": limit_s, "cpu_seconds": round(processor_seconds() - cpu, 1)}
  line |= {"wall_seconds": round(time.perf_counter() - wall, 1)}
  line |= {"cpu_seconds": round(processor_seconds() - cpu, 1)}
  found = re.search(r"^\{.*\}$", done.stdout, re.MULTILINE)
  if found is None:
    return line | {"failed": (done.stderr.strip().splitlines() or ["nothing"])[-1][:500]}
  told = json.loads(found[0])
  return line | {"compile_seconds": round(told["seconds"], 1), "total": told["total"]}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--limit_s", type=float, default=590, help="seconds until one is stopped")
  parser.add_argument("--attention", default="auto,xla", help="separated by commas")
  parser.add_argument("--lengths", default="2048,32768", help="of rows")
  args = parser.parse_args()
  for attention in args.attention.split(","):
    for length in map(int, args.lengths.split(",")):
      line = measure(attention, length, args.limit_s) | {"provenance": record.provenance()}
      print(json.dumps(line), flush=True)
      append_line(OUT, json.dumps(line))


if __name__ == "__main__":
  main()
