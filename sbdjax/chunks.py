"""A function of tokens computed a chunk at a time, so that only one chunk's intermediate results exist."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from sbdjax.kernels import sharded

# One chunk of float32 logits is 1024 x 128k x 4 B = 0.5 GB; with the backward pass XLA holds about
# three of them at a time (1.75 GB, compiled for CPU), whatever the number of tokens.
CHUNK = 1024
# Where tokens may be left out: so many chunks, if they can be had with _FEWEST tokens each, since
# half a chunk more than needed is computed on average. Smaller ones cost more than they save: the
# gradient of the head is added up once per chunk.
_PIECES, _FEWEST = 8, 256


def in_chunks(
  fn: Callable, chunk: int, *arrays: jax.Array, needed_BxL: jax.Array | None = None
) -> Any:
  """`fn` of the tokens of [B, L, ...] arrays, `chunk` at a time, recomputed in the backward pass.

  Where there are several chunks, tokens that are not needed go to the last ones, and a chunk of such
  tokens alone is skipped at run time, in the backward pass as well. On a mesh a token stays on the
  device of its row: each device has its part of every chunk, and a chunk is skipped where no device
  needs it.

  Args:
    fn: (array [n, ...], ...) -> pytree of [n, ...] arrays, each token on its own.
    chunk: largest number of tokens of a call on each device: the gradient of what `fn` closes over
      is added up over all devices once per chunk, so more devices must not make for more chunks.
    needed_BxL: bool; None: all are.

  Returns:
    The pytree of [B, L, ...] arrays; zeros where a token is not needed.
  """
  b, length = arrays[0].shape[:2]
  # Tokens that fit into one chunk are all computed: more chunks would have to be recomputed.
  groups = sharded.batch_shards(b)
  n, size = b * length // groups, chunk
  if needed_BxL is not None and n > chunk:
    size = min(chunk, max(math.ceil(n / _PIECES), _FEWEST))
  if n <= size:
    found = fn(*(x.reshape(b * length, *x.shape[2:]) for x in arrays))
    found = jax.tree.map(lambda x: x.reshape(b, length, *x.shape[1:]), found)
    return found if needed_BxL is None else _where(needed_BxL, found)

  grouped = [x.reshape(groups, n, *x.shape[2:]) for x in arrays]
  if needed_BxL is None:
    counts_G = jnp.full((groups,), n)
  else:
    needed_GxN = needed_BxL.reshape(groups, n)
    counts_G = jnp.sum(needed_GxN, axis=1)
    order_GxN = jnp.argsort(~needed_GxN, axis=1, stable=True)
    grouped = [_take(x, order_GxN) for x in grouped]
  starts = jnp.arange(0, n, size)
  some_C = jnp.max(counts_G) > starts

  def one(_, xs):
    some, parts = xs
    flat = [x.reshape(groups * size, *x.shape[2:]) for x in parts]
    nothing = lambda *xs: jax.tree.map(
      lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(fn, *xs)
    )
    found = fn(*flat) if needed_BxL is None else jax.lax.cond(some, fn, nothing, *flat)
    return None, jax.tree.map(lambda x: x.reshape(groups, size, *x.shape[1:]), found)

  parts = tuple(_cut(x, size) for x in grouped)
  # The choice is inside of what is made again, so that a chunk keeps its inputs alone.
  _, found = jax.lax.scan(jax.checkpoint(one), None, (some_C, parts))
  found = jax.tree.map(
    lambda x: jnp.moveaxis(x, 0, 1).reshape(groups, -1, *x.shape[3:])[:, :n], found
  )
  if needed_BxL is not None:
    back_GxN = jnp.argsort(order_GxN, axis=1)
    found = jax.tree.map(lambda x: _take(x, back_GxN), found)
  found = jax.tree.map(lambda x: x.reshape(b, length, *x.shape[2:]), found)
  return found if needed_BxL is None else _where(needed_BxL, found)


def _take(x_GxN: jax.Array, index_GxN: jax.Array) -> jax.Array:
  """Each group's entries in another order."""
  index = index_GxN.reshape(*index_GxN.shape, *(x_GxN.ndim - 2) * (1,))
  return jnp.take_along_axis(x_GxN, index, axis=1)


def _cut(x_GxN: jax.Array, size: int) -> jax.Array:
  """[G, N, ...] -> [C, G, size, ...], the last chunk filled up with zeros."""
  groups, n = x_GxN.shape[:2]
  padded = jnp.pad(x_GxN, ((0, 0), (0, -n % size), *(x_GxN.ndim - 2) * ((0, 0),)))
  return jnp.moveaxis(padded.reshape(groups, -1, size, *x_GxN.shape[2:]), 1, 0)


def _where(needed_BxL: jax.Array, found: Any) -> Any:
  """Zeros where a token is not needed, whatever chunk it was in."""

  def keep(x):
    needed = needed_BxL.reshape(*needed_BxL.shape, *(x.ndim - 2) * (1,))
    return jnp.where(needed, x, jnp.zeros((), x.dtype))

  return jax.tree.map(keep, found)
