"""Attention of a few queries over a long cache, on any device.

A window of T tokens (one token, a block of masks, a block and its drafts) reads the whole cache, so
the memory's bandwidth is what counts. The query heads of a key head and the window's tokens are
folded into one tile of rows, so that each key is loaded once; a device may cut the cache into
parts, and the T new keys are a part of their own, so that nothing is appended to the cache first.
Each part gives an output and a log-sum-exp, and those are merged (split-KV, "Flash-Decoding").
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from sbdjax import masks, pytree
from sbdjax.kernels import parts, tile_map
from sbdjax.kernels.flash import EMPTY, HIDDEN
from sbdjax.kernels.parts import KVPart
from sbdjax.kernels.tile_map import TileMap

# Windows up to this many tokens; longer ones (prefill) are the flash kernels'.
MAX_WINDOW = 64

# (q_BxKxRxDh, k_NxBxKxSxDh, v_NxBxKxSxDh, layer, tile_map, scale)
#   -> (o_BxKxPxRxDh, lse_BxKxPxR), float32: attention over one layer of the cache, in P parts.
# `layer` is an int32 scalar of the running program (`parts.StackedLayer` says why all layers are given).
# R = G T rows, row g T + t for token t of the g-th query head of a key head; the map's bounds are
# those of T queries in one tile. A row that sees nothing of a part gives zeros and EMPTY there.
# S need not be whole tiles, and what lies after the last key is not defined.
Partial = Callable[..., tuple[jax.Array, jax.Array]]


@pytree.dataclass
class WindowPlan:
  """A mask over [cache slots | T new tokens], prepared once per forward.

  Attributes:
    cache: tile map of the cache's part: one tile of T queries, tiles of `block_k` slots.
    new: int32 [B or 1, 2 I, T], the intervals inside the T new keys.
  """

  cache: TileMap
  new: jax.Array


def plan(mask: masks.Mask, num_queries: int, num_keys: int, *, block_k: int) -> WindowPlan:
  """Prepares `mask` for T queries over S - T cache slots and T new keys."""
  slots = num_keys - num_queries
  bounds = tile_map.interval_bounds(mask, num_queries, num_keys)
  cache = tile_map.from_bounds(
    jnp.minimum(bounds, slots), slots, block_q=num_queries, block_k=block_k
  )
  return WindowPlan(cache, jnp.maximum(bounds - slots, 0))


def decode(
  q_BxHxTxDh: jax.Array,
  keys: tuple[KVPart, jax.Array],
  values: tuple[KVPart, jax.Array],
  plan: WindowPlan,
  *,
  partial: Partial,
  scale: float,
) -> jax.Array:
  """Attention over (cache, new) keys, [B, H, T, Dh] in q's dtype; not differentiable.

  Args:
    keys: (the cache's [B, K, S, Dh] or a layer of it, new ones [B, K, T, Dh]).
    values: likewise.
    partial: the device's kernel over the cache.
  """
  batch, _, length, head_dim = q_BxHxTxDh.shape
  q = q_BxHxTxDh.reshape(batch, keys[1].shape[1], -1, head_dim)
  (k, layer), (v, _) = parts.as_layer(keys[0]), parts.as_layer(values[0])
  o_cache, lse_cache = partial(q, k, v, layer, plan.cache, scale)
  o_new, lse_new = dense_partial(q, keys[1], values[1], plan.new, scale)
  join = lambda *x: jnp.concatenate(x, axis=2)
  out = merge(join(o_cache, o_new), join(lse_cache, lse_new))
  return out.astype(q.dtype).reshape(q_BxHxTxDh.shape)


def merge(o_BxKxPxRxDh: jax.Array, lse_BxKxPxR: jax.Array) -> jax.Array:
  """Attention over the union of P disjoint sets of keys, float32 [B, K, R, Dh]."""
  weights = jnp.exp(lse_BxKxPxR - jnp.max(lse_BxKxPxR, axis=2, keepdims=True))
  # Parts that see nothing hold zeros, so what they weigh where no part sees anything is all one.
  total = jnp.sum(weights, axis=2)
  return jnp.einsum("bkprd,bkpr->bkrd", o_BxKxPxRxDh, weights) / total[..., None]


def fold(bounds: jax.Array, rows: int) -> jax.Array:
  """Bounds [B or 1, 2 I, T] of tokens as those of the R = G T rows."""
  return jnp.tile(bounds, (1, 1, rows // bounds.shape[2]))


def dense_partial(q_BxKxRxDh, k_BxKxSxDh, v_BxKxSxDh, bounds, scale) -> tuple[jax.Array, jax.Array]:
  """What a `Partial` gives for one part, in plain jnp, by bounds [B or 1, 2 I, T]."""
  bounds = fold(bounds, q_BxKxRxDh.shape[2])
  rows = tuple(bounds[:, i] for i in range(bounds.shape[1]))
  visible = masks.visible(rows, jnp.arange(k_BxKxSxDh.shape[2], dtype=jnp.int32))[:, None]
  scores = jnp.einsum("bkrd,bksd->bkrs", q_BxKxRxDh, k_BxKxSxDh, preferred_element_type=jnp.float32)
  scores = jnp.where(visible, scale * scores, HIDDEN)
  top = jnp.maximum(jnp.max(scores, axis=-1), EMPTY)
  weights = jnp.exp(scores - top[..., None])
  total = jnp.sum(weights, axis=-1)
  seen = total > 0
  total = jnp.where(seen, total, 1.0)
  probs = weights.astype(v_BxKxSxDh.dtype)
  o = jnp.einsum("bkrs,bksd->bkrd", probs, v_BxKxSxDh, preferred_element_type=jnp.float32)
  lse = jnp.where(seen, top + jnp.log(total), EMPTY)
  return (o / total[..., None])[:, :, None], lse[:, :, None]
