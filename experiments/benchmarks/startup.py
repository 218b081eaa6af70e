"""How long `python -m sbdjax generate` takes to its end, beside `import jax` alone.

python experiments/benchmarks/startup.py. Both run in turns as processes of their own, after one run
that fills a fresh compilation cache (which is the cold start). One JSON line is added to --out.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from sbdjax.bench.timing import summarise
from sbdjax.evals import record

OUT = pathlib.Path(__file__).with_name("startup_cpu.jsonl")
GENERATE = "-m sbdjax generate --checkpoint=stories260K --decoder.name=ar --decoder.max_tokens=32 --prompt=Once"
IMPORT = ("-c", "import jax")


def seconds(arguments: list[str], environment: dict[str, str]) -> float:
  """What a Python process with these arguments takes, by the clock."""
  start = time.perf_counter()
  subprocess.run(
    [sys.executable, *arguments], check=True, env=environment, stdout=subprocess.DEVNULL
  )
  return time.perf_counter() - start


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--turns", type=int, default=7)
  parser.add_argument("--out", type=pathlib.Path, default=OUT)
  args = parser.parse_args()
  about = record.provenance()
  with tempfile.TemporaryDirectory() as cache:
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache}
    cold = seconds(GENERATE.split(), environment)
    seconds(list(IMPORT), environment)
    turns = [
      (seconds(GENERATE.split(), environment), seconds(list(IMPORT), environment))
      for _ in range(args.turns)
    ]
  found = {
    "command": f"python {GENERATE}",
    "cold_seconds": cold,
    "warm_seconds": summarise([warm for warm, _ in turns])._asdict(),
    "import_jax_seconds": summarise([alone for _, alone in turns])._asdict(),
    "more_than_import_seconds": summarise([warm - alone for warm, alone in turns])._asdict(),
  }
  print(found)
  record.JsonLines(args.out).append(found | about)
  return 0


if __name__ == "__main__":
  sys.exit(main())
