"""A kernel: attention by the whole matrix of scores. What a backend must do, in the fewest lines."""

import jax
import jax.numpy as jnp

from sbdjax import masks
from sbdjax.kernels.backend import Backend
from sbdjax.kernels.parts import KVPart, read


def plan(mask: masks.Mask, num_queries: int, num_keys: int) -> jax.Array:
  """Once per forward, shared by all layers: bool [B or 1, T, S]."""
  return masks.dense(mask, num_queries, num_keys)


def attend(
  q_BxHxTxDh: jax.Array,
  keys: tuple[KVPart, ...],
  values: tuple[KVPart, ...],
  seen_BxTxS: jax.Array,
) -> jax.Array:
  """[B, H, T, Dh] in q's dtype; softmax in float32; a query that sees nothing gives zeros."""
  k_BxKxSxDh, v_BxKxSxDh = (
    jnp.concatenate([read(part) for part in parts], axis=2).astype(jnp.float32)
    for parts in (keys, values)
  )
  batch, heads, length, channels = q_BxHxTxDh.shape
  shared = heads // k_BxKxSxDh.shape[1]  # query heads per key head
  q = q_BxHxTxDh.astype(jnp.float32).reshape(batch, -1, shared, length, channels)
  scores = jnp.einsum("bkgtd,bksd->bkgts", q, k_BxKxSxDh) * channels**-0.5
  seen = seen_BxTxS[:, None, None]
  scores = jnp.where(seen, scores, -jnp.inf)
  top = jnp.max(scores, axis=-1, keepdims=True, initial=-1e30)
  weights = jnp.where(seen, jnp.exp(scores - top), 0.0)
  weights /= jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), 1e-30)
  out = jnp.einsum("bkgts,bksd->bkgtd", weights, v_BxKxSxDh)
  return out.reshape(q_BxHxTxDh.shape).astype(q_BxHxTxDh.dtype)


BACKEND = Backend(plan, attend)
