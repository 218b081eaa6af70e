"""Attention of a window of k tokens over a cache: how much of the memory's bandwidth it reaches.

A stack of layers is read one after the other, as a model does, so that no cache is found in a
faster memory because the call before has just read it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from sbdjax.bench import cases
from sbdjax.bench.attention import AttentionShape, failed
from sbdjax.bench.timing import Summary, compile_for, seconds_a_call
from sbdjax.kernels import backend
from sbdjax.kernels.parts import StackedLayer


@dataclasses.dataclass(frozen=True)
class DecodeAttentionTiming:
  """One measurement.

  Attributes:
    backend: who computed it.
    block_size: k, queries of a row; 1 is causal, more are an open block.
    context: cached tokens of a row.
    batch: B.
    layers: caches read by a call.
    seconds: of one layer, median; `low` and `high`: fastest and slowest. None with an `error`.
    bytes: read and written for one layer: committed slots, the window's keys and values, q and o.
    bandwidth: bytes / seconds at the median.
    of_copy: that as a share of the bandwidth of a copy.
    compile_seconds: wall-clock.
    error: why there is no measurement, or "".
  """

  backend: str
  block_size: int
  context: int
  batch: int
  layers: int
  seconds: float | None = None
  low: float | None = None
  high: float | None = None
  bytes: int | None = None
  bandwidth: float | None = None
  of_copy: float | None = None
  compile_seconds: float | None = None
  error: str = ""


def copy_bandwidth(size: int, repeats: int, lasting: float = 0.0) -> Summary:
  """Bytes a second of reading `size` bytes and writing as many: median, slowest, fastest."""
  x = jnp.zeros((size // 4,), jnp.int32)
  step = jax.jit(lambda x: x + 1)
  found = seconds_a_call(lambda: step(x), repeats, lasting=lasting)
  moved = 2 * x.nbytes
  return Summary(moved / found.median, moved / found.high, moved / found.low)


def bytes_of(shape: AttentionShape, block_size: int, context: int) -> int:
  """What attention over one layer's cache must read and write."""
  itemsize = jnp.dtype(shape.dtype).itemsize
  keys = 2 * shape.num_kv_heads * (context + block_size)
  queries = 2 * shape.num_heads * block_size
  return shape.batch * (keys + queries) * shape.head_dim * itemsize


def program(name: str, block_size: int) -> Callable:
  """(q, k_cache, v_cache [N, B, K, S, Dh], k_new, v_new, length_B) -> o after N layers."""

  def run(q, k_cache, v_cache, k_new, v_new, length_B):
    chosen = backend.get(name)
    mask = cases.window(length_B, block_size)
    plan = chosen.plan(mask, block_size, k_cache.shape[3] + block_size)

    def layer(q, i):
      keys, values = (StackedLayer(k_cache, i), k_new), (StackedLayer(v_cache, i), v_new)
      return chosen.attend(q, keys, values, plan), None

    layers = jnp.arange(k_cache.shape[0], dtype=jnp.int32)
    return jax.lax.scan(layer, q, layers)[0]

  return run


def shapes(
  shape: AttentionShape, block_size: int, capacity: int, layers: int
) -> list[jax.ShapeDtypeStruct]:
  """Arguments of `program`."""
  b, k, dh, dtype = shape.batch, shape.num_kv_heads, shape.head_dim, jnp.dtype(shape.dtype)
  q = jax.ShapeDtypeStruct((b, shape.num_heads, block_size, dh), dtype)
  cache = jax.ShapeDtypeStruct((layers, b, k, capacity, dh), dtype)
  new = jax.ShapeDtypeStruct((b, k, block_size, dh), dtype)
  return [q, cache, cache, new, new, jax.ShapeDtypeStruct((b,), jnp.int32)]


def measure(
  name: str,
  shape: AttentionShape,
  block_size: int,
  context: int,
  *,
  copy: float,
  read_bytes: int,
  repeats: int,
  lasting: float,
) -> DecodeAttentionTiming:
  """Times one program; an error of its own is part of the row.

  Args:
    name: a backend of `kernels.backend`.
    copy: bytes per second of `copy_bandwidth`.
    read_bytes: a call reads at least as many, over its layers.
  """
  moved = bytes_of(shape, block_size, context)
  layers = math.ceil(read_bytes / moved)
  row = DecodeAttentionTiming(name, block_size, context, shape.batch, layers)
  try:
    *arrays, length = shapes(shape, block_size, context, layers)
    keys = jax.random.split(jax.random.key(0), len(arrays))
    fill = jax.jit(jax.random.normal, static_argnums=(1, 2))
    args = [fill(key, x.shape, x.dtype) for key, x in zip(keys, arrays, strict=True)]
    args.append(jnp.full(length.shape, context, jnp.int32))
    compiled = compile_for(jax.jit(program(name, block_size)), *args)
    found = seconds_a_call(lambda: compiled.call(*args), repeats, lasting=lasting)
  except Exception as e:  # a kernel that cannot be had is a result
    return failed(row, e)
  bandwidth = moved * layers / found.median
  return dataclasses.replace(
    row,
    seconds=found.median / layers,
    low=found.low / layers,
    high=found.high / layers,
    bytes=moved,
    bandwidth=bandwidth,
    of_copy=bandwidth / copy,
    compile_seconds=compiled.compile_seconds,
  )
