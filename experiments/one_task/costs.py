"""What every training of this folder costs: floating-point operations of its updates, counted before it runs.

  python experiments/one_task/costs.py --runs=runs/one_task --out=experiments/one_task/costs.jsonl

The update of each run is compiled as `train --dry_run` does it; matrix products and attention are counted,
the teacher's too. Of runs that start from another one, `with` names both. What it took to write texts or
trajectories is not counted.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
from typing import Any

from sbdjax import presets
from sbdjax.evals import record

# Run -> the one it starts from.
STARTS = {
  name: "ntp" for name in ("sbd_adapter", "jacobi/round1", "jacobi_frozen/round1", "cllm/round1")
}
RUNS = ("ntp", "sbd", "sbd_no_ntp", "block_diffusion", "mdm", "ssmd", *STARTS)


def update(run: str, runs: pathlib.Path) -> dict[str, Any]:
  """What `train --dry_run` says of an update of the run's preset; operations are the same on any device."""
  preset = f"preset:stories_exercises:{run.split('/')[0]}"
  start = [f"--config.init.checkpoint={runs / STARTS[run]}"] if run in STARTS else []
  command = [sys.executable, "-m", "sbdjax", "train", f"--config={preset}", *start]
  done = subprocess.run(
    [*command, "--dry_run=h200:1", "--json"], capture_output=True, text=True, check=True
  )
  return json.loads(done.stdout.splitlines()[-1])


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
    "--runs", type=pathlib.Path, required=True, help="where the NTP model is, which some start from"
  )
  parser.add_argument("--out", type=pathlib.Path, required=True, help="JSON lines")
  args = parser.parse_args(argv)
  about, out = record.provenance(), record.JsonLines(args.out)
  done = {line["run"] for line in out.records}
  for run in RUNS:
    if run in done:
      continue
    found = update(run, args.runs)
    steps = presets.load(f"stories_exercises:{run.split('/')[0]}").train.steps
    line = {
      "run": run,
      "with": [STARTS[run], run] if run in STARTS else [run],
      "updates": steps,
      "tokens": found["tokens"] * steps,
      "flops": (found["flops"] + found["attention_flops"]) * steps,
    }
    out.append(line | about)
    print(f"{run}: {line['flops'] / 1e12:.1f} TFLOP in {steps:,} updates", flush=True)
  return 0


if __name__ == "__main__":
  sys.exit(main())
