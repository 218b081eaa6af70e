"""Time and peak memory of opening a checkpoint: python experiments/benchmarks/loading.py --folder=DIR

Writes a random bfloat16 checkpoint of Llama-3.2-1B's shape (1.24B parameters, shards of 1 GB) into
DIR, opens it in a fresh process, prints one JSON line and deletes the checkpoint. Linux only: the
peak is VmHWM of /proc/self/status, reset after the imports and after a first, tiny checkpoint was
opened, so that it holds what opening this one costs. `ratio` = (peak - before) / parameter bytes.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import time

import jax
import numpy as np

from sbdjax.evals import record
from sbdjax.interop import GenerationDefaults, Pretrained, load_pretrained, save_pretrained
from sbdjax.lm import LM, make_lm
from sbdjax.nn.transformer import TransformerConfig

SHAPE = dict(
  vocab_size=128_256, num_layers=16, d_model=2048, num_heads=32, num_kv_heads=8, d_ff=8192
)
TINY = dict(vocab_size=64, num_layers=1, d_model=16, num_heads=2, num_kv_heads=1, d_ff=16)


def write(folder: pathlib.Path, shape: dict) -> int:
  """Writes a random checkpoint; returns its number of parameters."""
  config = TransformerConfig(
    **shape, max_seq_len=4096, param_dtype="bfloat16", compute_dtype="bfloat16"
  )
  lm: LM = make_lm(config)
  tile = np.random.default_rng(0).normal(0, 0.02, 1 << 20).astype(jax.numpy.bfloat16)
  # Repeated, for speed: what is written does not matter to reading it.
  params = jax.tree.map(
    lambda x: np.resize(tile, x.shape), jax.eval_shape(lm.init, jax.random.key(0))
  )
  model = Pretrained(lm, params, None, GenerationDefaults((), None))
  save_pretrained(folder, model, max_shard_bytes=1_000_000_000)
  return sum(x.size for x in jax.tree.leaves(params))


def memory(field: str) -> int:
  """Bytes of VmRSS or VmHWM."""
  line = next(x for x in open("/proc/self/status") if x.startswith(field))
  return int(line.split()[1]) * 1024


def measure(folder: pathlib.Path) -> dict:
  """Opens `folder/tiny`, then `folder/large`, and reports on the latter."""
  jax.block_until_ready(load_pretrained(folder / "tiny").params)
  pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
  before, start, work = memory("VmRSS"), time.perf_counter(), time.process_time()
  params = jax.block_until_ready(load_pretrained(folder / "large").params)
  seconds, peak = time.perf_counter() - start, memory("VmHWM")
  size = sum(x.nbytes for x in jax.tree.leaves(params))
  return (
    dict(
      parameters=sum(x.size for x in jax.tree.leaves(params)),
      bytes=size,
      seconds=round(seconds, 2),
      cpu_seconds=round(time.process_time() - work, 2),
      before=before,
      peak=peak,
      ratio=round((peak - before) / size, 3),
      largest_leaf=max(x.nbytes for x in jax.tree.leaves(params)),
      device=record.device(),
    )
    | record.provenance()
  )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--folder", required=True, type=pathlib.Path)
  parser.add_argument("--measure", action="store_true", help="only open what is there")
  args = parser.parse_args()
  if args.measure:
    print(json.dumps(measure(args.folder)))
    return
  try:
    for name, shape in (("tiny", TINY), ("large", SHAPE)):
      write(args.folder / name, shape)
    subprocess.run([sys.executable, __file__, f"--folder={args.folder}", "--measure"], check=True)
  finally:
    shutil.rmtree(args.folder, ignore_errors=True)


if __name__ == "__main__":
  main()
