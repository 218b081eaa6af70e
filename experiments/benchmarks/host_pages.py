"""Training on a CPU with freed memory kept (`sbdjax.host_pages`) and without, as processes in turns.

python experiments/benchmarks/host_pages.py. Every process trains a small self-speculative model on the embedded
stories; the speed is the median of what it logs after the first updates. GLIBC_TUNABLES, set to nothing, turns the
keeping off. One JSON line is added to --out.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

from sbdjax.bench.timing import summarise
from sbdjax.evals import record

OUT = pathlib.Path(__file__).with_name("host_pages_cpu.jsonl")
TRAIN = "-m sbdjax train --config=preset:stories_ssmd --config.train.steps=101 --config.train.log_every=20 --config.train.eval_every=0"


def run(environment: dict[str, str]) -> tuple[float, float]:
  """Tokens/s of a training, and the share of its processor time that went to the system."""
  before = resource.getrusage(resource.RUSAGE_CHILDREN)
  with tempfile.TemporaryDirectory() as workdir:
    command = [sys.executable, *TRAIN.split(), f"--workdir={workdir}"]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    lines = map(json.loads, (pathlib.Path(workdir) / "metrics.jsonl").read_text().splitlines())
    speeds = [x["train/tokens_per_second"] for x in lines if "train/tokens_per_second" in x]
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
  return statistics.median(speeds[1:]), system / (user + system)


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--turns", type=int, default=5)
  parser.add_argument("--out", type=pathlib.Path, default=OUT)
  args = parser.parse_args()
  about = record.provenance()
  kept = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
  given_back = kept | {"GLIBC_TUNABLES": ""}
  turns = [(run(kept), run(given_back)) for _ in range(args.turns)]
  found = {
    "kept_tokens_per_second": [x[0] for x, _ in turns],
    "given_back_tokens_per_second": [y[0] for _, y in turns],
    "kept_system_share": [x[1] for x, _ in turns],
    "given_back_system_share": [y[1] for _, y in turns],
    "ratio": summarise([x[0] / y[0] for x, y in turns])._asdict(),
  }
  print(found)
  record.JsonLines(args.out).append(found | about)
  return 0


if __name__ == "__main__":
  sys.exit(main())
