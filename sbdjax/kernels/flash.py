"""Flash attention under any mask rule: one gradient rule over the kernels of a device.

Forward keeps the output and the log-sum-exp of the scores of every query, and the backward pass
makes the probabilities again from those (Dao, arXiv:2307.08691), so nothing of the size of the
score matrix is ever stored. A device's kernels are a `FlashKernels`; `REFERENCE` is one in plain jnp.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from sbdjax import masks
from sbdjax.kernels.tile_map import TileMap

# Scores of hidden keys, and the log-sum-exp of a query that sees none. The second is far above the
# first, so exp(score - lse) is 0 in both passes without asking whether a query sees anything.
HIDDEN = -1e30
EMPTY = 0.5 * HIDDEN

# What `jax.checkpoint` policies may keep by name (nn.config.REMAT_POLICIES).
OUTPUT, LOG_SUM_EXP = "attention_output", "attention_log_sum_exp"


class FlashKernels(NamedTuple):
  """The three kernels of one device.

  H is a multiple of K: query head h belongs to key head h // (H / K). `plan` is what the device
  made of the mask once per forward: a `TileMap`, or something made from one. Products accumulate in
  float32; probabilities are rounded to the inputs' dtype before they are multiplied.

  Attributes:
    forward: (q_BxHxTxDh, k_BxKxSxDh, v_BxKxSxDh, plan, scale) -> (o_BxHxTxDh in q's dtype,
      lse_BxHxT float32). A query that sees no key gives zeros and EMPTY.
    dq: (q, k, v, d_o, lse, delta_BxHxT, plan, scale) -> dq_BxHxTxDh in q's dtype; delta is
      sum(d_o * o) over channels, float32.
    dkv: the same arguments -> (dk_BxKxSxDh, dv_BxKxSxDh) in k's dtype, summed over the query heads
      of each key head.
  """

  forward: Callable[..., tuple[jax.Array, jax.Array]]
  dq: Callable[..., jax.Array]
  dkv: Callable[..., tuple[jax.Array, jax.Array]]


def flash(
  q_BxHxTxDh: jax.Array,
  k_BxKxSxDh: jax.Array,
  v_BxKxSxDh: jax.Array,
  plan: Any,
  *,
  kernels: FlashKernels,
  scale: float,
) -> jax.Array:
  """softmax(scale q k^T, where the mask shows a key) v, [B, H, T, Dh] in q's dtype."""
  return _flash(q_BxHxTxDh, k_BxKxSxDh, v_BxKxSxDh, plan, kernels, scale)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _flash(q, k, v, plan, kernels, scale):
  return kernels.forward(q, k, v, plan, scale)[0]


def _forward(q, k, v, plan, kernels, scale):
  o, lse = kernels.forward(q, k, v, plan, scale)
  o, lse = checkpoint_name(o, OUTPUT), checkpoint_name(lse, LOG_SUM_EXP)
  return o, (q, k, v, plan, o, lse)


def _backward(kernels, scale, residuals, d_o):
  q, k, v, plan, o, lse = residuals
  delta = jnp.sum(d_o.astype(jnp.float32) * o.astype(jnp.float32), axis=-1)
  args = (q, k, v, d_o, lse, delta, plan, scale)
  return kernels.dq(*args), *kernels.dkv(*args), None


_flash.defvjp(_forward, _backward)


def _fold(x, kv_heads):
  """[B, H, T, ...] -> [B, K, H / K, T, ...]."""
  return x.reshape(x.shape[0], kv_heads, -1, *x.shape[2:])


def _scores(q, k, tile_map: TileMap, scale):
  bounds = tuple(tile_map.bounds[:, i, : q.shape[2]] for i in range(2 * tile_map.num_intervals))
  visible = masks.visible(bounds, jnp.arange(k.shape[2], dtype=jnp.int32))
  q = _fold(q, k.shape[1])
  scores = scale * jnp.einsum("bkgtd,bksd->bkgts", q, k, preferred_element_type=jnp.float32)
  return jnp.where(visible[:, None, None], scores, HIDDEN)


def _reference_forward(q, k, v, tile_map, scale):
  scores = _scores(q, k, tile_map, scale)
  top = jnp.maximum(jnp.max(scores, axis=-1), EMPTY)
  weights = jnp.exp(scores - top[..., None])
  total = jnp.sum(weights, axis=-1)
  probs = (weights / jnp.maximum(total, 1e-30)[..., None]).astype(q.dtype)
  lse = jnp.where(total > 0, top + jnp.log(jnp.maximum(total, 1e-30)), EMPTY)
  o = jnp.einsum("bkgts,bksd->bkgtd", probs, v).reshape(q.shape)
  return o, lse.reshape(q.shape[:3])


def _reference_gradients(q, k, v, d_o, lse, delta, tile_map, scale):
  """(probabilities, gradient of the scores), [B, K, G, T, S] in q's dtype."""
  fold = functools.partial(_fold, kv_heads=k.shape[1])
  probs = jnp.exp(_scores(q, k, tile_map, scale) - fold(lse)[..., None])
  d_probs = jnp.einsum("bkgtd,bksd->bkgts", fold(d_o), v, preferred_element_type=jnp.float32)
  d_scores = scale * probs * (d_probs - fold(delta)[..., None])
  return probs.astype(q.dtype), d_scores.astype(q.dtype)


def _reference_dq(q, k, v, d_o, lse, delta, tile_map, scale):
  _, d_scores = _reference_gradients(q, k, v, d_o, lse, delta, tile_map, scale)
  return jnp.einsum("bkgts,bksd->bkgtd", d_scores, k).reshape(q.shape)


def _reference_dkv(q, k, v, d_o, lse, delta, tile_map, scale):
  fold = functools.partial(_fold, kv_heads=k.shape[1])
  probs, d_scores = _reference_gradients(q, k, v, d_o, lse, delta, tile_map, scale)
  d_k = jnp.einsum("bkgts,bkgtd->bksd", d_scores, fold(q))
  return d_k, jnp.einsum("bkgts,bkgtd->bksd", probs, fold(d_o))


# Computes the whole score matrix, whatever the tiles; for tests and to compare kernels with.
REFERENCE = FlashKernels(_reference_forward, _reference_dq, _reference_dkv)
