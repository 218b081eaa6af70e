"""What the TPU kernels do with one tile of scores, keys along rows and queries along lanes.

With the scores transposed, a query's bounds, maximum and sum are rows that spread over the tile for
nothing, its reductions run down the sublanes, and the log-sum-exp is stored without 128 copies.
Scores are in units of log 2, so that exponentials are powers of two.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sbdjax.kernels.flash import EMPTY, HIDDEN

Ref = Any  # of memory, as Pallas gives them

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


def dot(a: jax.Array, b: jax.Array, contract: str) -> jax.Array:
  """a b ("nn"), a b^T ("nt") or a^T b ("tn"), in float32."""
  axes = {"nn": ((1,), (0,)), "nt": ((1,), (1,)), "tn": ((0,), (0,))}[contract]
  return lax.dot_general(a, b, (axes, ((), ())), preferred_element_type=jnp.float32)


def visible(bounds: jax.Array, first_key: jax.Array, num_keys: int) -> jax.Array:
  """bool [num_keys, Q] of the keys from `first_key` on, for bounds [2 I, Q]."""
  shape = (num_keys, bounds.shape[1])
  key = first_key + lax.broadcasted_iota(jnp.int32, shape, 0)
  spans = range(0, bounds.shape[0], 2)
  inside = ((key >= bounds[i : i + 1]) & (key < bounds[i + 1 : i + 2]) for i in spans)
  return functools.reduce(operator.or_, inside)


def scores(k: jax.Array, q: jax.Array, scale: float, seen: jax.Array | None) -> jax.Array:
  """float32 [keys, queries], in units of log 2; HIDDEN where `seen` is given and false."""
  s = dot(k, q, "nt") * (scale * LOG2_E)
  return s if seen is None else jnp.where(seen, s, HIDDEN)


def start(m_ref: Ref, l_ref: Ref, acc_ref: Ref) -> None:
  """Nothing seen yet: maximum [1, Q], sum [1, Q] and weighted values [Dh, Q] of the softmax."""
  m_ref[...] = jnp.full(m_ref.shape, EMPTY, jnp.float32)
  l_ref[...] = jnp.zeros(l_ref.shape, jnp.float32)
  acc_ref[...] = jnp.zeros(acc_ref.shape, jnp.float32)


def accumulate(s: jax.Array, v: jax.Array, m_ref: Ref, l_ref: Ref, acc_ref: Ref) -> None:
  """Online softmax: one more tile of scores [keys, Q] and values [keys, Dh]."""
  m = m_ref[...]
  top = jnp.maximum(m, jnp.max(s, axis=0, keepdims=True))
  p = jnp.exp2(s - top)
  decay = jnp.exp2(m - top)
  m_ref[...] = top
  l_ref[...] = decay * l_ref[...] + jnp.sum(p, axis=0, keepdims=True)
  acc_ref[...] = decay * acc_ref[...] + dot(v, p.astype(v.dtype), "tn")


def finish(m_ref: Ref, l_ref: Ref, acc_ref: Ref) -> tuple[jax.Array, jax.Array]:
  """(output [Dh, Q], log-sum-exp [1, Q]), float32; zeros and EMPTY of a query that sees nothing."""
  total = l_ref[...]
  seen = total > 0
  total = jnp.where(seen, total, 1.0)
  lse = jnp.where(seen, (m_ref[...] + jnp.log2(total)) * LN_2, EMPTY)
  return acc_ref[...] / total, lse
