"""Attention of a few queries over a cache on TPU: each visible slot is read once.

The grid is (groups of key heads, visit): a visit is a row of the batch and a tile of its cache, and
the list of them is as long as the committed slots of all rows together, however they differ.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from sbdjax.kernels import decode, tpu_softmax, tpu_visits
from sbdjax.kernels.tile_map import TileMap

# Of keys a step of the grid: long against the third of a microsecond that a step costs, and two
# buffers of keys and of values fit beside the rest.
_TILE_BYTES = 2**20
_SUBLANES = 16  # rows of the query tile come in multiples of this


def block_k(num_slots: int) -> int:
  """Cache slots a tile."""
  return 512 if num_slots >= 4096 else 128


def _heads_a_step(kv_heads: int, bytes_of_a_head: int) -> int:
  """The largest divisor of `kv_heads` whose tiles are within _TILE_BYTES, at least 1."""
  fits = max(1, _TILE_BYTES // bytes_of_a_head)
  return max(n for n in range(1, kv_heads + 1) if kv_heads % n == 0 and n <= fits)


def _visits(cache: TileMap, batch: int) -> tpu_visits.TPUVisits:
  """The cache tiles of all rows of the batch, one list."""

  def rows(x):
    return jnp.broadcast_to(x, (batch, *x.shape[1:])).reshape(batch, -1)

  count = rows(cache.row_count)[:, 0]
  return tpu_visits.make(count, rows(cache.row_tiles), rows(cache.row_full))


def _kernel(codes_ref, layer_ref, q_ref, k_ref, v_ref, bounds_ref, *refs, scale, num_slots):
  del layer_ref  # of the index maps alone
  o_ref, lse_ref, *scratch = refs
  visit = tpu_visits.unpack(codes_ref[pl.program_id(1)])
  heads, block, _ = k_ref.shape
  first_slot = visit.inner * block

  @pl.when(visit.first)
  def _():
    for h in range(heads):
      tpu_softmax.start(*(ref.at[h] for ref in scratch))

  def compute(seen, v_of):
    for h in range(heads):
      s = tpu_softmax.scores(k_ref[h], q_ref[h], scale, seen)
      tpu_softmax.accumulate(s, v_of(h), *(ref.at[h] for ref in scratch))

  pl.when(visit.live & visit.full)(lambda: compute(None, lambda h: v_ref[h]))

  @pl.when(visit.live & ~visit.full)
  def _():
    seen = tpu_softmax.visible(bounds_ref[...], first_slot, block)
    if num_slots % block == 0:
      return compute(seen, lambda h: v_ref[h])
    # After the last slot lies anything, and 0 times a NaN is one.
    slot = first_slot + jax.lax.broadcasted_iota(jnp.int32, v_ref.shape[1:], 0)
    compute(seen, lambda h: jnp.where(slot < num_slots, v_ref[h], 0))

  @pl.when(visit.last)
  def _():
    for h in range(heads):
      o_ref[h], lse_ref[h] = tpu_softmax.finish(*(ref.at[h] for ref in scratch))


def partial(q_BxKxRxDh, k_NxBxKxSxDh, v_NxBxKxSxDh, layer, cache: TileMap, scale):
  """A `decode.Partial` in one part: TPU cores run one step after the other."""
  batch, kv_heads, rows, head_dim = q_BxKxRxDh.shape
  block = cache.block_k
  padding = -rows % _SUBLANES
  q = jnp.pad(q_BxKxRxDh, ((0, 0), (0, 0), (0, padding), (0, 0)))
  bounds = jnp.pad(decode.fold(cache.bounds, rows), ((0, 0), (0, 0), (0, padding)))
  heads = _heads_a_step(kv_heads, block * head_dim * k_NxBxKxSxDh.dtype.itemsize)
  visits = _visits(cache, batch)
  shared = bounds.shape[0] == 1
  row_of = lambda t, codes: tpu_visits.outer_of(codes[t])
  of_row = lambda *block: pl.BlockSpec(
    (None, heads, *block), lambda g, t, codes, layer: (row_of(t, codes), g, 0, 0)
  )
  of_tile = pl.BlockSpec(
    (None, None, heads, block, head_dim),
    lambda g, t, codes, layer: (layer[0], row_of(t, codes), g, tpu_visits.inner_of(codes[t]), 0),
  )
  of_bounds = pl.BlockSpec(
    (None, bounds.shape[1], rows + padding),
    lambda g, t, codes, layer: (0 if shared else row_of(t, codes), 0, 0),
  )
  number = pltpu.VMEM((heads, 1, rows + padding), jnp.float32)
  o_BxKxDhxR, lse = pl.pallas_call(
    functools.partial(_kernel, scale=scale, num_slots=k_NxBxKxSxDh.shape[3]),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=2,
      grid=(kv_heads // heads, visits.count),
      in_specs=[of_row(rows + padding, head_dim), of_tile, of_tile, of_bounds],
      out_specs=[of_row(head_dim, rows + padding), of_row(1, rows + padding)],
      scratch_shapes=[
        number,
        number,
        pltpu.VMEM((heads, head_dim, rows + padding), jnp.float32),
      ],
    ),
    out_shape=[
      jax.ShapeDtypeStruct((batch, kv_heads, head_dim, rows + padding), jnp.float32),
      jax.ShapeDtypeStruct((batch, kv_heads, 1, rows + padding), jnp.float32),
    ],
    compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    name="decode",
  )(visits.codes, layer[None], q, k_NxBxKxSxDh, v_NxBxKxSxDh, bounds)
  return o_BxKxDhxR.swapaxes(2, 3)[:, :, None, :rows], lse[..., :rows]
