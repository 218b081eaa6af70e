"""The tiles of a map as one flat list, which a TPU kernel's grid walks.

A kernel whose grid were all pairs of tiles would step over the empty ones, at a third of a
microsecond each: more than the products of a training mask take. Here the grid is as long as the
list of tiles that are seen, and its length is a number of the running program.

A visit is one int32, for the scalar memory that index maps read from.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from sbdjax import pytree
from sbdjax.errors import UsageError

_FLAGS, _INNER = 4, 13  # bits; the outer tile has the 14 that remain below the sign
MAX_TILES = 2**_INNER


class Visit(NamedTuple):
  """One step of the grid, scalars or arrays of one shape.

  Attributes:
    outer: the tile whose result is accumulated (of queries; of keys for their gradients).
    inner: the tile it meets.
    live: whether there is anything to compute: not where the outer tile sees nothing.
    full: whether every pair is visible, so that nothing has to be compared.
    first, last: of the visits of an outer tile.
  """

  outer: jax.Array
  inner: jax.Array
  live: jax.Array
  full: jax.Array
  first: jax.Array
  last: jax.Array


@pytree.dataclass
class TPUVisits:
  """All visits, ordered by the outer tile, each of which has at least one.

  Attributes:
    codes: int32 [..., N], packed; after `count` the last one is repeated without its flags, so
      that such a step loads, computes and writes nothing.
    count: int32 [...].
  """

  codes: jax.Array
  count: jax.Array


def make(count: jax.Array, tiles: jax.Array, full: jax.Array) -> TPUVisits:
  """TPUVisits of the lists of a `TileMap`: [..., O], [..., O, N], [..., O, N]."""
  *lead, outer, inner = tiles.shape
  if max(outer, inner) > MAX_TILES:
    raise UsageError(
      f"attention over {max(outer, inner)} tiles: the kernels hold {MAX_TILES}; shorten the rows"
    )
  slot = jnp.arange(inner, dtype=jnp.int32)
  visits = jnp.maximum(count, 1)
  flags = (slot < count[..., None], full > 0, slot == 0, slot == visits[..., None] - 1)
  code = jnp.arange(outer, dtype=jnp.int32)[:, None] << (_INNER + _FLAGS) | tiles << _FLAGS
  for bit, flag in enumerate(flags):
    code = code | flag.astype(jnp.int32) << bit
  # Step t belongs to the outer tile whose visits end after it.
  end = jnp.cumsum(visits, axis=-1, dtype=jnp.int32)
  total = end[..., -1]
  step = jnp.arange(outer * inner, dtype=jnp.int32)
  at = jnp.minimum(step, total[..., None] - 1)
  tile = jnp.sum(end[..., None, :] <= at[..., None], axis=-1, dtype=jnp.int32)
  begin = jnp.take_along_axis(end - visits, tile, axis=-1)
  codes = jnp.take_along_axis(
    code.reshape(*lead, outer * inner), tile * inner + at - begin, axis=-1
  )
  codes = jnp.where(step < total[..., None], codes, codes >> _FLAGS << _FLAGS)
  return TPUVisits(codes, total)


def unpack(code: jax.Array) -> Visit:
  """The visit of a code."""
  live, full, first, last = ((code >> bit & 1) == 1 for bit in range(_FLAGS))
  return Visit(outer_of(code), inner_of(code), live, full, first, last)


def outer_of(code: jax.Array) -> jax.Array:
  return code >> (_INNER + _FLAGS)


def inner_of(code: jax.Array) -> jax.Array:
  return code >> _FLAGS & (MAX_TILES - 1)
