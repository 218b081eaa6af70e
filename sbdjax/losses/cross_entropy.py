"""Cross-entropy whose peak memory does not grow with tokens x vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from sbdjax import reductions
from sbdjax.losses.chunks import CHUNK, in_chunks


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
    logits = logits_fn(hidden_nxD)
    picked = jnp.take_along_axis(logits, targets_n[:, None], axis=-1)[:, 0]
    return jax.nn.logsumexp(logits, axis=-1) - picked, reductions.argmax(logits) == targets_n

  needed = None if weights_BxL is None else weights_BxL != 0
  return in_chunks(nll, chunk, hidden_BxLxD, targets_BxL, needed_BxL=needed)
