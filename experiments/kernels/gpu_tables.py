"""Tables of `run_gpu.py`'s record on a GPU, gpu.jsonl.

python experiments/kernels/gpu_tables.py      # prints them; experiments/tables.py writes them

Times are medians of nine measurements, each the mean over some 20 ms of calls, with the least and the most; ratios of
two times have the widest range that these allow.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import sys
from typing import Any

from sbdjax.bench import targets
from sbdjax.bootstrap import Interval
from sbdjax.evals import markdown

HERE = pathlib.Path(__file__).resolve().parent
Record = dict[str, Any]
OURS = "pallas_gpu"
# Heads and numbers per head of `run_gpu.py`'s attention: Llama 3.1 8B's.
HEADS, HEAD_DIM = 32, 128
RIVALS = {
  "flex": "FlexAttention",
  "cudnn_dense": "cuDNN, mask as a matrix",
  "xla_dense": "XLA, mask as a matrix",
  "xla": "XLA, tiles of the mask",
}


@functools.cache
def records() -> list[Record]:
  """All lines, stage after stage; the first of each stage tells device, versions, commit and command."""
  return [json.loads(line) for line in (HERE / "gpu.jsonl").read_text().splitlines()]


def of(stage: str, **fields: Any) -> list[Record]:
  """Measurements of a stage with these fields."""
  return [
    r
    for r in records()
    if r["stage"] == stage and fields.items() <= r.items() and "provenance" not in r
  ]


def one(stage: str, **fields: Any) -> Record | None:
  """The only measurement with these fields; None where there is none."""
  found = [r for r in of(stage, **fields) if r.get("seconds") or "step_seconds" in r]
  if len(found) > 1:
    raise LookupError(f"{len(found)} measurements of {stage} have {fields}: name one")
  return found[0] if found else None


def ratio(above: Record, below: Record) -> Interval:
  """Seconds of one measurement / those of another."""
  low, high = above["low"] / below["high"], above["high"] / below["low"]
  return Interval(above["seconds"] / below["seconds"], low, high)


def seconds(row: Record, digits: int, scale: float) -> str:
  """`median [least, most]` of the measurements, times `scale`."""
  return Interval(row["seconds"], row["low"], row["high"]).shown(digits, scale)


def judged() -> str:
  """Every target, over all stages of the run."""
  rows = []
  for x in targets.judge(records()):
    found = None if x.found is None else f"{x.found:.2f}"
    rows.append((x.name, f"{x.relation} {x.wanted:g}", found, x.verdict))
  return markdown.table(("target", "wanted", "found", ""), rows)


def checked(backend: str = OURS) -> int:
  """Comparisons of arrays with float64, all of which were right; 0 if any of the run was wrong."""
  right = all(r.get("ok") for r in of("correctness"))
  return len(of("correctness", backend=backend)) if right else 0


def largest_error(backend: str = OURS) -> float:
  """Largest difference from float64, as a share of the largest number of its array."""
  return max(r["difference"] / r["scale"] for r in of("correctness", backend=backend))


def times_as_fast(rival: str, work: str, length: int = 4096) -> Interval | None:
  """Seconds of a rival / ours, under the SBD mask; None where either was not measured."""
  at = dict(case="sbd", work=work, length=length)
  ours = one("attention", backend=OURS, **at)
  theirs = one("flex" if rival == "flex" else "attention", backend=rival, **at)
  return ratio(theirs, ours) if ours and theirs else None


def attention() -> str:
  """The SBD mask: our kernels, and how many times as long the others take."""
  rows = []
  for work, length in sorted({(r["work"], r["length"]) for r in of("attention", backend=OURS)}):
    r = one("attention", backend=OURS, case="sbd", work=work, length=length)
    if r is None:
      continue
    times = (times_as_fast(rival, work, length) for rival in RIVALS)
    shown = [x and x.shown(2 if x.value < 10 else 1) for x in times]
    rows.append((length, work, seconds(r, 2, 1e3), f"{r['tflops']:.0f}", *shown))
  return markdown.table(("L", "pass", "ours, ms", "TFLOP/s", *RIVALS.values()), rows)


def decoding() -> str:
  """Windows of k queries over a cache: bytes that must move beside a copy, and plain XLA."""
  rows = []
  for r in (x for x in of("decode", backend=OURS) if x["seconds"]):
    at = {name: r[name] for name in ("batch", "context", "block_size")}
    xla = one("decode", backend="xla", **at)
    rows.append(
      (*at.values(), r["layers"], seconds(r, 1, 1e6), f"{r['of_copy']:.2f}", f"{tflops(r):.0f}",
       ratio(xla, r).shown(1) if xla else None)
    )  # fmt: skip
  head = (
    "batch", "cache", "k", "layers", "ours, microseconds", "share of a copy's bandwidth", "TFLOP/s", "XLA: its time / ours",
  )  # fmt: skip
  return markdown.table(head, rows)


def tflops(row: Record) -> float:
  """Of a window's two products with the cache and with itself, 10^12 operations per second."""
  keys = row["context"] + row["block_size"]
  products = 4 * row["batch"] * HEADS * row["block_size"] * keys * HEAD_DIM
  return products / row["seconds"] / 1e12


def window(batch: int, context: int, k: int) -> Record:
  """Our kernel's measurement."""
  found = one("decode", backend=OURS, batch=batch, context=context, block_size=k)
  assert found is not None
  return found


def forwards() -> str:
  """8B: one forward at a time, of k tokens after a cache."""
  rows = []
  for r in of("model", kind="block"):
    at = {name: r[name] for name in ("batch_size", "kv_cache")}
    single = one("model", kind="block", block_size=1, **at)
    over = "1" if r is single else ratio(r, single).shown(2) if single else None
    rows.append(
      (*at.values(), r["block_size"], seconds(r, 2, 1e3), over, f"{r['predicted']:.2f}", f"{r['paper']:.2f}")
    )  # fmt: skip
  head = (
    "batch", "cache", "k", "ms", "time(k) / time(1)", "this model's roofline", "the paper's (FP8 weights)",
  )  # fmt: skip
  return markdown.table(head, rows)


def samplers() -> str:
  """8B: what the samplers reach, and what they add to their forwards."""
  rows = []
  for r in of("model", kind="sampler"):
    speed = Interval(r["tokens_per_second"], r["low"], r["high"]).shown(1)
    added = Interval(r["overhead"], r["overhead_low"], r["overhead_high"]).shown(1, 100)
    share = r["of_copy"] and f"{r['of_copy']:.2f}"
    rows.append((r["decoder"], speed, f"{1e3 * r['step_seconds']:.2f}", added, share))
  head = (
    "decoder", "tokens/s", "ms per forward", "the sampler's overhead, %", "share of a copy's bandwidth",
  )  # fmt: skip
  return markdown.table(head, rows)


def sampler(decoder: str) -> Record:
  """The measurement of one sampler."""
  found = one("model", kind="sampler", decoder=decoder)
  assert found is not None
  return found


def step_of_block() -> Interval:
  """SBD's forwards of 16 and 32 tokens / AR's of one, both inside their samplers' loops, one token each."""
  sbd, ar = sampler("sbd block_size=16"), sampler("ar")
  low, high = ar["low"] / sbd["high"], ar["high"] / sbd["low"]
  return Interval(ar["tokens_per_second"] / sbd["tokens_per_second"], low, high)


def fallback() -> tuple[float, float]:
  """Plain XLA, which follows the mask's tiles: its forward at 4,096 tokens / ours, and / cuDNN's."""
  at = dict(case="sbd", work="forward", length=4096)
  xla, ours, cudnn = (
    one("attention", backend=x, **at)["seconds"] for x in ("xla", OURS, "cudnn_dense")
  )
  return xla / ours, xla / cudnn


def bound_by_products(k: int) -> float:
  """Share of a copy's bandwidth that a window of k at batch 8 and cache 8,192 can have with the training kernel's rate."""
  rate = one("attention", backend=OURS, case="sbd", work="forward", length=4096)["tflops"]
  row = window(8, 8192, k)
  return row["of_copy"] * rate / tflops(row)


def copy_bandwidth() -> float:
  """10^12 bytes per second, read and written."""
  return next(r["copy"]["median"] for r in of("decode") if "copy" in r) / 1e12


def main(argv: list[str] | None = None) -> int:
  argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(argv)
  for table in (judged, attention, decoding, forwards, samplers):
    print(f"{table.__doc__}\n\n{table()}\n")
  return 0


if __name__ == "__main__":
  sys.exit(main())
