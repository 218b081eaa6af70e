"""Cross-entropy whose peak memory does not grow with tokens x vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from sbdjax import reductions
from sbdjax.chunks import CHUNK, in_chunks


def nll_of(logits_nxV: jax.Array, targets_n: jax.Array) -> tuple[jax.Array, jax.Array]:
  """-log p(target) [n], and whether the argmax is the target [n]."""
  picked = jnp.take_along_axis(logits_nxV, targets_n[:, None], axis=-1)[:, 0]
  nll = jax.nn.logsumexp(logits_nxV, axis=-1) - picked
  return nll, reductions.argmax(logits_nxV) == targets_n


def token_nll(
  logits_fn: Callable[[jax.Array], jax.Array],
  hidden_BxLxD: jax.Array,
  targets_BxL: jax.Array,
  weights_BxL: jax.Array | None = None,
  *,
  chunk: int = CHUNK,
) -> tuple[jax.Array, jax.Array]:
  """-log p(target), computed `chunk` tokens at a time; logits are recomputed in the backward pass.

  Args:
    logits_fn: hidden [n, D] -> float32 logits [n, V], the mask token left out (`LM.logits`).
    hidden_BxLxD: final hidden states.
    targets_BxL: int32 token to predict at each position.
    weights_BxL: tokens of weight 0 need no logits, and are left out a chunk at a time; None: all
      count.
    chunk: tokens whose logits exist at one time.

  Returns:
    nll float32 [B, L] in nats, and correct bool [B, L] (the argmax is the target); 0 and False for
    tokens of weight 0.
  """

  def nll(hidden_nxD: jax.Array, targets_n: jax.Array) -> tuple[jax.Array, jax.Array]:
    return nll_of(logits_fn(hidden_nxD), targets_n)

  needed = None if weights_BxL is None else weights_BxL != 0
  return in_chunks(nll, chunk, hidden_BxLxD, targets_BxL, needed_BxL=needed)
