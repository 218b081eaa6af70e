"""What the kernels are meant to reach on a Hopper GPU, against the records of a run."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Record = dict[str, Any]


class PerformanceTarget(NamedTuple):
  """A number to reach.

  Attributes:
    name: what it is of.
    relation: ">=" or "<=".
    wanted: the number.
    find: records -> what was measured, or None.
    anywhere: it is judged on every device; the others on GPUs alone.
  """

  name: str
  relation: str
  wanted: float
  find: Callable[[Sequence[Record]], float | None]
  anywhere: bool = False


class TargetOutcome(NamedTuple):
  """A target and what became of it: "pass", "miss" or "not measured"."""

  name: str
  relation: str
  wanted: float
  found: float | None
  verdict: str


def _pick(records: Sequence[Record], stage: str, **fields: Any) -> list[Record]:
  return [
    r
    for r in records
    if r.get("stage") == stage and all(r.get(name) == value for name, value in fields.items())
  ]


def _times_as_fast(rival: str, work: str, length: int = 4096) -> Callable:
  """Seconds of `rival` / those of our kernel, under the SBD mask."""

  def find(records):
    at = dict(case="sbd", work=work, length=length)
    ours, theirs = (
      [r for r in _pick(records, stage, backend=name, **at) if r.get("seconds")]
      for stage, name in (("attention", "pallas_gpu"), (_STAGE_OF.get(rival, "attention"), rival))
    )
    return theirs[0]["seconds"] / ours[0]["seconds"] if ours and theirs else None

  return find


_STAGE_OF = {"flex": "flex"}
_LONG = 8192  # tokens from which a cache's bandwidth, not the start of a kernel, is what counts


def _slowest_decoding(records: Sequence[Record]) -> float | None:
  """The lowest share of a copy's bandwidth, over windows and long caches, at the largest batch."""
  rows = [r for r in _pick(records, "decode", backend="pallas_gpu") if r.get("of_copy")]
  long = [r for r in rows if r["context"] >= _LONG]
  batch = max((r["batch"] for r in long), default=None)
  return min((r["of_copy"] for r in long if r["batch"] == batch), default=None)


def _largest_slowdown(records: Sequence[Record]) -> float | None:
  """time(16) / time(1) at batch 1, the largest over the caches measured."""
  rows = _pick(records, "model", kind="block", batch_size=1, block_size=16)
  return max((r["slowdown"] for r in rows if r["slowdown"]), default=None)


def _step_of_block(records: Sequence[Record]) -> float | None:
  """Seconds of SBD's forwards / of AR's, both inside the loops of their samplers."""
  ar = _pick(records, "model", kind="sampler", decoder="ar")
  sbd = _pick(records, "model", kind="sampler", decoder="sbd block_size=16")
  return sbd[0]["forward_seconds"] / ar[0]["forward_seconds"] if ar and sbd else None


def _largest(stage: str, field: str, **fields: Any) -> Callable:
  def find(records):
    return max((r[field] for r in _pick(records, stage, **fields) if r.get(field)), default=None)

  return find


def _wrong(records: Sequence[Record]) -> float | None:
  """Comparisons that failed, or could not be made; None without any."""
  rows = [r for r in _pick(records, "correctness") if "ok" in r or "error" in r]
  return float(sum(not r.get("ok", False) for r in rows)) if rows else None


TARGETS = (
  PerformanceTarget("wrong results", "<=", 0.0, _wrong, anywhere=True),
  PerformanceTarget(
    "forward, x XLA dense, SBD L=4096", ">=", 5.0, _times_as_fast("xla_dense", "forward")
  ),
  PerformanceTarget(
    "forward+backward, x XLA dense, SBD L=4096",
    ">=",
    4.0,
    _times_as_fast("xla_dense", "forward+backward"),
  ),
  PerformanceTarget(
    "forward, x FlexAttention, SBD L=4096", ">=", 0.9, _times_as_fast("flex", "forward")
  ),
  PerformanceTarget(
    "forward+backward, x FlexAttention, SBD L=4096",
    ">=",
    0.9,
    _times_as_fast("flex", "forward+backward"),
  ),
  PerformanceTarget(
    "decoding, share of a copy's bandwidth, cache >= 8192", ">=", 0.8, _slowest_decoding
  ),
  PerformanceTarget("time(16) / time(1), batch 1", "<=", 1.05, _largest_slowdown),
  PerformanceTarget("SBD's forwards / AR's, in their samplers, k = 16", "<=", 1.05, _step_of_block),
  PerformanceTarget(
    "overhead of the AR sampler",
    "<=",
    0.05,
    _largest("model", "overhead", kind="sampler", decoder="ar"),
  ),
  PerformanceTarget(
    "overhead of the SBD sampler",
    "<=",
    0.05,
    _largest("model", "overhead", kind="sampler", decoder="sbd block_size=16"),
  ),
)
_MEETS = {">=": operator.ge, "<=": operator.le}


def judge(records: Sequence[Record]) -> list[TargetOutcome]:
  """Every target against the records; what was not measured is neither passed nor missed."""
  devices = [r["provenance"]["device"] for r in records if "provenance" in r]
  on_gpu = bool(devices) and all(device.startswith("gpu") for device in devices)
  verdicts = []
  for target in TARGETS:
    found = target.find(records) if on_gpu or target.anywhere else None
    met = found is not None and _MEETS[target.relation](found, target.wanted)
    verdict = "not measured" if found is None else "pass" if met else "miss"
    verdicts.append(TargetOutcome(target.name, target.relation, target.wanted, found, verdict))
  return verdicts
