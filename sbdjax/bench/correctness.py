"""Attention on the device at hand against dense attention in float64 on the host."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sbdjax import masks
from sbdjax.bench import attention, cases, decode_attention
from sbdjax.bench.attention import AttentionShape
from sbdjax.bench.rivals import RIVALS

# Largest error allowed, as a share of the largest number of the result: a few roundings.
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 4e-3}


@dataclasses.dataclass(frozen=True)
class KernelCheck:
  """One comparison.

  Attributes:
    case: the mask, or "decode k=...".
    backend: who computed it.
    array: "o", "dq", "dk" or "dv".
    difference: largest absolute difference from the reference.
    scale: largest absolute number of the reference.
    ok: difference <= TOLERANCE x scale, and nothing is NaN.
  """

  case: str
  backend: str
  array: str
  difference: float
  scale: float
  ok: bool


def reference(q: Any, k: Any, v: Any, d_o: Any, visible_TxS: Any) -> list[np.ndarray]:
  """(o, dq, dk, dv) of arrays [B, heads, T or S, Dh], all in float64, from the definition."""
  q, k, v, d_o = (np.asarray(x, np.float64) for x in (q, k, v, d_o))
  batch, heads, _, head_dim = q.shape
  kv_heads = k.shape[1]
  group = heads // kv_heads
  k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
  scale = head_dim**-0.5
  scores = np.where(visible_TxS, scale * q @ k.swapaxes(2, 3), -np.inf)
  top = scores.max(axis=-1, keepdims=True)
  weights = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
  probs = weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300)
  o = probs @ v
  d_probs = d_o @ v.swapaxes(2, 3)
  d_scores = scale * probs * (d_probs - (d_o * o).sum(axis=-1, keepdims=True))
  of_group = lambda x: x.reshape(batch, kv_heads, group, *x.shape[2:]).sum(axis=2)
  d_k, d_v = of_group(d_scores.swapaxes(2, 3) @ q), of_group(probs.swapaxes(2, 3) @ d_o)
  return [o, d_scores @ k, d_k, d_v]


def _row(
  case: str, backend: str, array: str, found: Any, expected: np.ndarray, dtype: str
) -> KernelCheck:
  difference = float(np.max(np.abs(np.asarray(found, np.float64) - expected)))
  scale = float(np.max(np.abs(expected)))
  return KernelCheck(
    case, backend, array, difference, scale, difference <= TOLERANCE[dtype] * scale
  )


def check_training(
  backend: str, case: str, shape: AttentionShape, length: int, block_size: int
) -> list[KernelCheck]:
  """Output and gradients of a rival of that name under a mask; the block size is traced."""
  rule, rival = cases.TRAINING[case], RIVALS[backend]
  queries = rule.queries(length, block_size)
  arrays = attention.operands(shape, queries, rival.time_major)
  plan = jax.jit(attention.planner(rival, case, length, block_size))(jnp.int32(block_size))
  o, gradients = jax.jit(attention.program(rival, "forward+backward"))(*arrays, plan)
  mask = rule.mask(length, block_size, jnp.int32(block_size))
  visible = np.asarray(masks.dense(mask, queries, queries))[0]
  heads_first = lambda x: np.asarray(x).swapaxes(1, 2) if rival.time_major else x
  q, k, v, d_o = map(heads_first, arrays)
  expected = reference(q, k, v, d_o, visible)
  found = map(heads_first, (o, *gradients))
  return [
    _row(case, backend, name, x, y, shape.dtype)
    for name, x, y in zip(("o", "dq", "dk", "dv"), found, expected, strict=True)
  ]


def check_decoding(
  backend: str, shape: AttentionShape, block_size: int, lengths: list[int], capacity: int
) -> KernelCheck:
  """A window over a cache of two layers whose rows have different lengths; the last one is read last."""
  shape = dataclasses.replace(shape, batch=len(lengths))
  *arrays, _ = decode_attention.shapes(shape, block_size, capacity, layers=2)
  keys = jax.random.split(jax.random.key(1), len(arrays))
  q, k_cache, v_cache, k_new, v_new = (
    jax.random.normal(key, x.shape, x.dtype) for key, x in zip(keys, arrays, strict=True)
  )
  length_B = jnp.array(lengths, jnp.int32)
  args = (q, k_cache, v_cache, k_new, v_new, length_B)
  found = jax.jit(decode_attention.program(backend, block_size))(*args)
  visible = np.asarray(
    masks.dense(cases.window(length_B, block_size), block_size, capacity + block_size)
  )
  old_k, old_v, new_k, new_v = (np.asarray(x) for x in (k_cache, v_cache, k_new, v_new))
  expected = np.asarray(q, np.float64)
  for layer, b in itertools.product(range(2), range(len(lengths))):
    k = np.concatenate([old_k[layer, b], new_k[b]], axis=1)[None]
    v = np.concatenate([old_v[layer, b], new_v[b]], axis=1)[None]
    own = expected[b : b + 1]
    expected[b : b + 1] = reference(own, k, v, own, visible[b])[0]
  return _row(f"decode k={block_size}", backend, "o", found, expected, shape.dtype)
