"""The masks that attention is measured and compiled with, by name.

A case is made for L, the tokens of a text, and k, the tokens of a block. Its mask is a function of
numbers that stay traced, as in training, where the block size changes from step to step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sbdjax import masks


class Case(NamedTuple):
  """A training mask.

  Attributes:
    queries: (L, k) -> T, tokens of the forward; as many keys.
    mask: (L, k, traced k) -> the rule.
  """

  queries: Callable[[int, int], int]
  mask: Callable[[int, int, jax.Array | int], masks.Mask]


def _noisy(length: int, block_size: int) -> int:
  """Half of the text is prompt; each block of the other half has a noisy version."""
  return length // 2 // block_size * block_size


def _jacobi(length: int, block_size: int, traced: jax.Array | int) -> masks.Mask:
  del traced  # a static of this rule
  noisy = _noisy(length, block_size)
  return masks.JacobiTrain(jnp.full((1,), length - noisy, jnp.int32), block_size, noisy)


def _jacobi_clean_window(length: int, block_size: int, traced: jax.Array | int) -> masks.Mask:
  """The one training mask of four intervals a query; windows of four blocks."""
  del traced
  noisy = _noisy(length, block_size)
  start_B = jnp.full((1,), length - noisy, jnp.int32)
  return masks.JacobiTrainCleanWindow(start_B, block_size, noisy, 4)


TRAINING: dict[str, Case] = {
  "sbd": Case(lambda n, k: 2 * n, lambda n, k, t: masks.SBDTrain(t, max_block_size=k)),
  "block_diffusion": Case(
    lambda n, k: 2 * n, lambda n, k, t: masks.BlockDiffusionTrain(t, max_block_size=k)
  ),
  "jacobi": Case(lambda n, k: n + _noisy(n, k), _jacobi),
  "jacobi_clean_window": Case(lambda n, k: n + _noisy(n, k), _jacobi_clean_window),
  "causal": Case(lambda n, k: 2 * n, lambda n, k, t: masks.Causal()),
}


def window(length_B: jax.Array, block_size: int) -> masks.Cached:
  """Decoding over `length_B` cached tokens: one causal token for k = 1, else an open block of k."""
  return masks.Cached(length_B, jnp.zeros_like(length_B), num_causal=1 if block_size == 1 else 0)


def visible_pairs(mask: masks.Mask, num_queries: int, num_keys: int) -> int:
  """(query, key) pairs that see each other, a row of the batch."""
  bounds = [np.asarray(x, np.int64) for x in mask.intervals(num_queries, num_keys)]
  spans = [
    np.maximum(np.clip(b, 0, num_keys) - np.clip(a, 0, num_keys), 0)
    for a, b in zip(bounds[::2], bounds[1::2], strict=True)
  ]
  return int(np.sum(spans)) // bounds[0].shape[0]
