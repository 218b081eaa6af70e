"""Everything that only a Hopper GPU can say of the kernels: python experiments/kernels/run_gpu.py

The repository and JAX 0.11 with CUDA are enough. Every stage has a process of its own, so that one
that fails or hangs takes no other with it; each records its results as they come (--out, JSON
lines) and starts nothing new after --limit_s seconds. PyTorch and tokamax are compared with where
they are installed.

  correctness  output and gradients against float64 on the host, every mask; windows over a cache
  attention    training masks, L = 1k, 4k, 8k: our kernels, XLA, cuDNN, tokamax
  flex         the same by PyTorch's FlexAttention
  decode       windows of k = 1, 16, 64 over caches of 1k-32k, as bytes per second beside a copy
  model        an 8B model with random bf16 weights: time(k) / time(1) beside the roofline, AR and
               SBD speed, what the samplers add to their forwards

--size=tiny runs on any device in minutes, to see that every stage works; its times mean nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

STAGES = ("correctness", "attention", "flex", "decode", "model")


@dataclasses.dataclass(frozen=True)
class Size:
  """How large everything is.

  Attributes:
    heads: (H, K, Dh).
    dtype: of arrays.
    lengths: L of the masks at which all are compared; other masks at the middle one alone.
    tokens: batch x L is kept near this.
    contexts, windows, batches: of decoding.
    read_bytes: caches read by a call.
    check_length: L of the comparison with float64.
    model: overrides of the 8B model's shape.
    grid: (batch, cache) of the model's blocks, the most wanted first.
    blocks: k of the model's blocks.
    max_tokens: decoded by the model's samplers.
    repeats, lasting: of a measurement.
  """

  heads: tuple[int, int, int] = (32, 8, 128)
  dtype: str = "bfloat16"
  lengths: tuple[int, ...] = (1024, 4096, 8192)
  tokens: int = 8192
  contexts: tuple[int, ...] = (1024, 4096, 8192, 32768)
  windows: tuple[int, ...] = (1, 16, 64)
  batches: tuple[int, ...] = (1, 8)
  read_bytes: int = 1 << 30
  check_length: int = 500
  model: tuple[tuple[str, Any], ...] = (("param_dtype", "bfloat16"),)
  grid: tuple[tuple[int, int], ...] = ((1, 1024), (8, 1024), (16, 1024), (1, 16384), (16, 16384))
  blocks: tuple[int, ...] = (1, 4, 8, 16, 32, 64)
  max_tokens: int = 128
  repeats: int = 9
  lasting: float = 0.02


_TINY_MODEL = dict(
  vocab_size=256, num_layers=2, d_model=64, num_heads=4, num_kv_heads=2, d_ff=96, mask_id=255
)
SIZES = {
  "full": Size(),
  "tiny": Size(
    heads=(4, 2, 64),
    dtype="float32",
    lengths=(32, 64),
    tokens=64,
    contexts=(64,),
    windows=(1, 4),
    batches=(1,),
    read_bytes=1,
    check_length=40,
    model=tuple({**_TINY_MODEL, "compute_dtype": "float32", "head_dim": 16}.items()),
    grid=((1, 32),),
    blocks=(1, 4),
    max_tokens=8,
    repeats=3,
    lasting=0.0,
  ),
}
BLOCK_SIZE = 16
_GRACE_S = 60.0


def _ours() -> str:
  import jax

  return {"gpu": "pallas_gpu", "tpu": "pallas_tpu"}.get(jax.default_backend(), "xla")


def _shape(size: Size, batch: int = 1):
  from sbdjax.bench.attention import AttentionShape

  return AttentionShape(batch, *size.heads, size.dtype)


def correctness(size: Size) -> Iterator[Callable[[], list[dict]]]:
  from sbdjax.bench import cases
  from sbdjax.bench import correctness as check

  # Fewer heads: the reference on the host is slow. Lengths that no tile divides.
  shape = dataclasses.replace(_shape(size), num_heads=4, num_kv_heads=2)
  names = dict.fromkeys((_ours(), "xla"))
  rows = lambda found: [dataclasses.asdict(row) for row in found]
  for name, case in itertools.product(names, cases.TRAINING):
    yield lambda name=name, case=case: rows(
      check.check_training(name, case, shape, size.check_length, BLOCK_SIZE)
    )
  # Capacities that kernels read in place, as models have them, and that they copy first.
  capacities = (size.check_length, size.check_length // 8 * 8)
  for capacity, name, k in itertools.product(dict.fromkeys(capacities), names, size.windows):
    lengths = [capacity, 0, capacity // 3]
    yield lambda name=name, k=k, lengths=lengths, capacity=capacity: [
      {"capacity": capacity} | row
      for row in rows([check.check_decoding(name, shape, k, lengths, capacity)])
    ]


def _attention_grid(size: Size) -> Iterator[tuple[int, str, str]]:
  """(L, mask, pass): the SBD mask at every length, the middle one first; the others there alone."""
  from sbdjax.bench import attention

  middle = size.lengths[len(size.lengths) // 2]
  rest = [n for n in size.lengths if n != middle]
  for work in attention.PASSES:
    yield middle, "sbd", work
  for work, length in itertools.product(attention.PASSES, rest):
    yield length, "sbd", work
  for work, case in itertools.product(attention.PASSES, ("causal", "block_diffusion", "jacobi")):
    yield middle, case, work


def attention(size: Size) -> Iterator[Callable[[], list[dict]]]:
  import jax

  from sbdjax.bench import attention as bench
  from sbdjax.bench.rivals import present

  there, absent = present(jax.default_backend())
  yield lambda: [{"absent": absent}]
  timed = dict(repeats=size.repeats, lasting=size.lasting)
  for (length, case, work), (name, rival) in itertools.product(
    _attention_grid(size), there.items()
  ):
    at = (name, rival, case, work, _shape(size, max(1, size.tokens // length)), length, BLOCK_SIZE)
    if rival.knows(case):
      yield lambda at=at: [dataclasses.asdict(bench.measure(*at, **timed))]


def flex(size: Size) -> Iterator[Callable[[], list[dict]]]:
  from sbdjax.bench import flex as bench

  if reason := bench.missing():
    yield lambda: [{"absent": {"flex": reason}}]
    return
  import torch

  yield lambda: [{"torch": torch.__version__}]
  timed = dict(repeats=size.repeats, lasting=size.lasting)
  for length, case, work in _attention_grid(size):
    at = (case, work, _shape(size, max(1, size.tokens // length)), length, BLOCK_SIZE)
    yield lambda at=at: [dataclasses.asdict(bench.measure(*at, **timed))]


def decode(size: Size) -> Iterator[Callable[[], list[dict]]]:
  from sbdjax.bench import decode_attention as bench

  timed = dict(repeats=size.repeats, lasting=size.lasting)
  copy = bench.copy_bandwidth(max(size.read_bytes, 1 << 20), **timed)
  yield lambda: [{"copy": copy._asdict()}]
  for batch, context, k, name in itertools.product(
    reversed(size.batches), reversed(size.contexts), size.windows, dict.fromkeys((_ours(), "xla"))
  ):
    at = (name, _shape(size, batch), k, context)
    more = timed | dict(copy=copy.median, read_bytes=size.read_bytes)
    yield lambda at=at, more=more: [dataclasses.asdict(bench.measure(*at, **more))]


def model(size: Size) -> Iterator[Callable[[], list[dict]]]:
  import jax

  from sbdjax.bench import decode_attention, model_speed
  from sbdjax.lm import make_lm
  from sbdjax.nn.transformer import TransformerConfig
  from sbdjax.presets import llama31_8b_sbd

  shape = llama31_8b_sbd.get_config().model.to_dict() | {"remat": "none"} | dict(size.model)
  lm = make_lm(TransformerConfig(**shape))
  params = jax.block_until_ready(jax.jit(lm.init)(jax.random.key(0)))
  timed = dict(repeats=size.repeats, lasting=size.lasting)
  copy = decode_attention.copy_bandwidth(max(size.read_bytes, 1 << 20), **timed).median
  sizes = dict(prompt_length=16, max_tokens=size.max_tokens, block_size=BLOCK_SIZE)
  samplers = model_speed.time_samplers(
    lm, params, batch_size=1, copy=copy, repeats=size.repeats, **sizes
  )
  blocks = model_speed.time_blocks(lm, params, size.grid, size.blocks, **timed)
  for _ in size.blocks:
    yield lambda: [{"kind": "block"} | dataclasses.asdict(next(blocks))]
  for _ in range(2):
    yield lambda: [_flat(next(samplers))]
  for _ in range((len(size.grid) - 1) * len(size.blocks)):
    yield lambda: [{"kind": "block"} | dataclasses.asdict(next(blocks))]


def _flat(found: Any) -> dict:
  return {"kind": "sampler"} | dataclasses.asdict(found.row) | {"of_copy": found.of_copy}


def work(stage: str, size: Size, limit_s: float) -> None:
  """What a stage's own process does: a line of JSON a result."""
  from sbdjax.evals import record

  deadline = time.monotonic() + limit_s
  print(json.dumps({"stage": stage, "provenance": record.provenance()}), flush=True)
  for measure in globals()[stage](size):
    if time.monotonic() > deadline:
      print(json.dumps({"stage": stage, "cut": f"nothing new after {limit_s:.0f} s"}), flush=True)
      return
    try:
      found = measure()
    except Exception as e:  # the next may work
      found = [{"error": " ".join(f"{type(e).__name__}: {e}".split())[:500]}]
    for row in found:
      print(json.dumps({"stage": stage} | row), flush=True)


def run(stage: str, args: argparse.Namespace) -> Iterator[dict]:
  """Records of a stage, as its process gives them; the last one says how it failed, if it did."""
  command = [sys.executable, __file__, f"--worker={stage}", f"--size={args.size}"]
  command += [f"--limit_s={args.limit_s}"]
  # Where torch wants some of the device, JAX does not take it in advance.
  environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if stage == "flex" else {}
  log = args.out.with_suffix(f".{stage}.log")
  with open(log, "w+") as errors:
    process = subprocess.Popen(
      command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=errors, text=True
    )
    watch = threading.Timer(args.limit_s + _GRACE_S, process.kill)
    watch.start()
    yield from (json.loads(x) for x in process.stdout if x.startswith("{"))
    code = process.wait()
    watch.cancel()
    errors.seek(0)
    said = errors.read().strip().splitlines()
  if code:
    yield {"stage": stage, "failed": said[-1][:500] if said else f"exit code {code}"}
  else:
    log.unlink()


def main() -> int:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add("--stages", default=",".join(STAGES), help="separated by commas")
  add("--size", choices=tuple(SIZES), default="full")
  add("--limit_s", type=float, default=540, help="of a stage; a minute later it is killed")
  add("--out", type=pathlib.Path, default=ROOT / "experiments" / "kernels" / "gpu.jsonl")
  add("--worker", choices=STAGES, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.worker:
    work(args.worker, SIZES[args.size], args.limit_s)
    return 0
  stages = args.stages.split(",")
  if unknown := set(stages) - set(STAGES):
    parser.error(f"--stages: unknown {', '.join(sorted(unknown))}: choose from {', '.join(STAGES)}")
  from sbdjax.bench import targets

  args.out.parent.mkdir(parents=True, exist_ok=True)
  records = []
  with open(args.out, "w") as file:
    for stage in stages:
      for record in run(stage, args):
        print(json.dumps(record), flush=True)
        file.write(json.dumps(record) + "\n")
        file.flush()
        records.append(record)
    for verdict in targets.judge(records):
      file.write(json.dumps({"stage": "targets"} | verdict._asdict()) + "\n")
      found = "-" if verdict.found is None else f"{verdict.found:.3g}"
      print(f"{verdict.verdict}: {verdict.name}: {found} ({verdict.relation} {verdict.wanted:g})")
  return 1 if any("failed" in r for r in records) else 0


if __name__ == "__main__":
  sys.exit(main())
