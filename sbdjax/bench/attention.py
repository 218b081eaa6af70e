"""Speed of attention alone: forward, and forward with backward, under a training mask."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from sbdjax import masks
from sbdjax.bench import cases
from sbdjax.bench.rivals import Rival
from sbdjax.bench.timing import Summary, compile_for, seconds_a_call

# Products of the size of the score matrix: two in forward, five more in backward, where scores are
# made again (FlashAttention-2, section 4.1). What is counted for everyone, whatever they compute.
_PRODUCTS = {"forward": 2, "forward+backward": 7}
PASSES = tuple(_PRODUCTS)


@dataclasses.dataclass(frozen=True)
class AttentionShape:
  """Arrays of one attention.

  Attributes:
    batch: B.
    num_heads: H; a multiple of `num_kv_heads`, K.
    head_dim: Dh.
    dtype: name.
  """

  batch: int = 1
  num_heads: int = 4
  num_kv_heads: int = 2
  head_dim: int = 64
  dtype: str = "float32"


@dataclasses.dataclass(frozen=True)
class AttentionTiming:
  """One measurement.

  Attributes:
    case: the mask, a key of `cases.TRAINING`.
    backend: who computed it.
    work: "forward" or "forward+backward".
    length: L, tokens of the text.
    queries: T, tokens of the forward.
    block_size: k.
    batch: B.
    seconds: median; `low` and `high`: fastest and slowest. None with an `error`.
    tflops: 1e12 flop/s at the median, of the pairs that the mask shows alone.
    temporary_bytes: that the program needs beside arguments and results; None where not known.
    compile_seconds: wall-clock.
    error: why there is no measurement, or "".
  """

  case: str
  backend: str
  work: str
  length: int
  queries: int
  block_size: int
  batch: int
  seconds: float | None = None
  low: float | None = None
  high: float | None = None
  tflops: float | None = None
  temporary_bytes: int | None = None
  compile_seconds: float | None = None
  error: str = ""


def measured(
  row: AttentionTiming,
  shape: AttentionShape,
  mask: masks.Mask,
  found: Summary,
  compile_seconds: float,
  temporary_bytes: int | None = None,
) -> AttentionTiming:
  """`row` with what was found; effective TFLOP/s are of the pairs that `mask` shows."""
  pairs = cases.visible_pairs(mask, row.queries, row.queries)
  return dataclasses.replace(
    row,
    seconds=found.median,
    low=found.low,
    high=found.high,
    tflops=flops(shape, pairs, row.work) / found.median / 1e12,
    temporary_bytes=temporary_bytes,
    compile_seconds=compile_seconds,
  )


def failed(row: Any, error: Exception) -> Any:
  """A row of any benchmark, with the first line of why there is no measurement."""
  return dataclasses.replace(row, error=f"{type(error).__name__}: {error}".split("\n")[0][:300])


def flops(shape: AttentionShape, pairs: int, work: str) -> float:
  """Of all products over `pairs` (query, key) pairs a row and head."""
  return 2.0 * _PRODUCTS[work] * shape.batch * shape.num_heads * shape.head_dim * pairs


def operands(shape: AttentionShape, length: int, time_major: bool) -> list[jax.Array]:
  """q, k, v and the gradient of the output, normal numbers: [B, heads, T, Dh] or time first."""
  found = []
  for i, heads in enumerate(
    (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads, shape.num_heads)
  ):
    dims = (shape.batch, length, heads, shape.head_dim)
    dims = dims if time_major else (dims[0], dims[2], dims[1], dims[3])
    found.append(jax.random.normal(jax.random.key(i), dims, jnp.dtype(shape.dtype)))
  return found


def program(rival: Rival, work: str) -> Callable:
  """(q, k, v, d_o, plan) -> o, or (o, (dq, dk, dv))."""

  def forward(q, k, v, d_o, plan):
    del d_o
    return rival.attend(q, k, v, plan)

  def both(q, k, v, d_o, plan):
    o, pull = jax.vjp(lambda q, k, v: rival.attend(q, k, v, plan), q, k, v)
    return o, pull(d_o)

  return {"forward": forward, "forward+backward": both}[work]


def planner(rival: Rival, case: str, length: int, block_size: int) -> Callable:
  """traced k -> the rival's plan of the mask."""
  rule = cases.TRAINING[case]
  queries = rule.queries(length, block_size)
  return lambda k: rival.plan(rule.mask(length, block_size, k), queries, queries)


def measure(
  name: str,
  rival: Rival,
  case: str,
  work: str,
  shape: AttentionShape,
  length: int,
  block_size: int,
  *,
  repeats: int,
  lasting: float,
) -> AttentionTiming:
  """Times one program; an error of its own (out of memory, no such kernel) is part of the row."""
  rule = cases.TRAINING[case]
  queries = rule.queries(length, block_size)
  row = AttentionTiming(case, name, work, length, queries, block_size, shape.batch)
  try:
    plan = jax.jit(planner(rival, case, length, block_size))(jnp.int32(block_size))
    args = (*operands(shape, queries, rival.time_major), plan)
    compiled = compile_for(jax.jit(program(rival, work)), *args)
    found = seconds_a_call(lambda: compiled.call(*args), repeats, lasting=lasting)
  except Exception as e:  # whatever another library raises is its result
    return failed(row, e)
  mask = rule.mask(length, block_size, block_size)
  return measured(row, shape, mask, found, compiled.compile_seconds, compiled.temporary_bytes)
