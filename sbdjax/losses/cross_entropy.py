"""Cross-entropy whose peak memory does not grow with tokens x vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from sbdjax import reductions
from sbdjax.errors import UsageError

# One chunk of float32 logits is 1024 x 128k x 4 B = 0.5 GB; with the backward pass XLA holds about
# three of them at a time (1.75 GB, compiled for CPU), whatever the number of tokens.
CHUNK = 1024


def check_chunk(chunk: int) -> None:
  """A loss setting's `chunk` must be usable.

  Raises:
    UsageError: chunk < 1.
  """
  if chunk < 1:
    raise UsageError(f"loss.chunk={chunk}: at least one token's logits must exist at a time")


def token_nll(
  logits_fn: Callable[[jax.Array], jax.Array],
  hidden_BxLxD: jax.Array,
  targets_BxL: jax.Array,
  *,
  chunk: int = CHUNK,
) -> tuple[jax.Array, jax.Array]:
  """-log p(target), computed `chunk` tokens at a time; logits are recomputed in the backward pass.

  Args:
    logits_fn: hidden [n, D] -> float32 logits [n, V], the mask token left out (`LM.logits`).
    hidden_BxLxD: final hidden states.
    targets_BxL: int32 token to predict at each position.
    chunk: tokens whose logits exist at one time.

  Returns:
    nll float32 [B, L] in nats, and correct bool [B, L] (the argmax is the target).
  """

  def nll(hidden_nxD: jax.Array, targets_n: jax.Array) -> tuple[jax.Array, jax.Array]:
    logits = logits_fn(hidden_nxD)
    picked = jnp.take_along_axis(logits, targets_n[:, None], axis=-1)[:, 0]
    return jax.nn.logsumexp(logits, axis=-1) - picked, reductions.argmax(logits) == targets_n

  return in_chunks(nll, chunk, hidden_BxLxD, targets_BxL)


def in_chunks(fn: Callable, chunk: int, *arrays: jax.Array) -> Any:
  """`fn` of the tokens of [B, L, ...] arrays, `chunk` at a time, recomputed in the backward pass.

  Args:
    fn: (array [n, ...], ...) -> pytree of [n, ...] arrays, each token on its own.
    chunk: tokens of a call.

  Returns:
    The pytree of [B, L, ...] arrays.
  """
  b, length = arrays[0].shape[:2]
  n = b * length
  flat = [x.reshape(n, *x.shape[2:]) for x in arrays]
  if n <= chunk:
    found = fn(*flat)
  else:
    parts = [
      jnp.pad(x, ((0, -n % chunk), *(x.ndim - 1) * ((0, 0),))).reshape(-1, chunk, *x.shape[1:])
      for x in flat
    ]
    _, found = jax.lax.scan(lambda _, xs: (None, jax.checkpoint(fn)(*xs)), None, tuple(parts))
    found = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:n], found)
  return jax.tree.map(lambda x: x.reshape(b, length, *x.shape[1:]), found)
