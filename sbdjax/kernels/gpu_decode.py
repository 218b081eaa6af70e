"""Attention of a few queries over a cache for Hopper GPUs: each visible slot is read once a window.

The rows of a key head (its query heads times the window's tokens) are the 64 rows of a WGMMA. Of
the two warpgroups that compute, each takes every other tile of the cache, and they put what they
have together at the end; for more than 64 rows each takes 64 of them and all tiles. The visible
tiles are cut into parts, a block of threads for each, enough for all multiprocessors, and
`decode.merge` puts the parts together by their log-sum-exp.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from sbdjax.kernels import decode
from sbdjax.kernels import gpu_common as common
from sbdjax.kernels import gpu_softmax as softmax
from sbdjax.kernels.tile_map import TileMap

BLOCK_K = 64  # cache slots a tile
_COMPUTE, _ROWS = common.COMPUTE, common.WARPGROUP_ROWS
_MULTIPROCESSORS = 132  # of an H100 or H200
_TILES_A_PART = 4  # at least: a part has to be worth its start and its share of the merge


def block_k(num_slots: int) -> int:
  """Cache slots a tile, whatever the cache's size."""
  del num_slots
  return BLOCK_K


def num_parts(num_tiles: int, blocks_a_part: int) -> int:
  """Parts to cut a cache of `num_tiles` into, so that every multiprocessor has a block."""
  return max(1, min(_MULTIPROCESSORS // blocks_a_part, num_tiles // _TILES_A_PART))


def partial(
  q_BxKxRxDh: jax.Array,
  k_NxBxKxSxDh: jax.Array,
  v_NxBxKxSxDh: jax.Array,
  layer: jax.Array,
  cache: TileMap,
  scale: float,
  *,
  register_operands: bool = True,
) -> tuple[jax.Array, jax.Array]:
  """A `decode.Partial`.

  Args:
    register_operands: see `gpu_flash.forward`.

  Returns:
    (o [B, K, P, R, Dh], log-sum-exp [B, K, P, R]), float32, for P parts of the visible tiles.

  Raises:
    UsageError: from `gpu_common.check`.
  """
  batch, kv_heads, rows, dh = q_BxKxRxDh.shape
  dtype = q_BxKxRxDh.dtype
  common.check(dtype, dh)
  row_groups = 1 if rows <= _ROWS else _COMPUTE  # warpgroups side by side
  key_groups = _COMPUTE // row_groups  # warpgroups that share the tiles
  row_blocks = -(-rows // (row_groups * _ROWS))
  width = common.width(dh)
  stages = (4 if row_groups == 1 else 3) * 128 // width
  parts = num_parts(cache.row_tiles.shape[2], batch * kv_heads * row_blocks)
  if k_NxBxKxSxDh.shape[3] % 8:  # copies the layer: keep caches of a multiple of eight slots
    cut = lambda x: common.eights(jax.lax.dynamic_slice_in_dim(x, layer, 1))
    k_NxBxKxSxDh, v_NxBxKxSxDh, layer = cut(k_NxBxKxSxDh), cut(v_NxBxKxSxDh), jnp.int32(0)
  q = common.eights(q_BxKxRxDh)
  bounds = decode.fold(cache.bounds, rows)
  padded = row_blocks * row_groups * _ROWS
  bounds = jnp.pad(bounds, ((0, 0), (0, 0), (0, padded - rows)))
  maps, num_bounds, _ = bounds.shape
  scale_log2 = scale * common.LOG2_E

  def kernel(
    q_gmem, k_gmem, v_gmem, layer_gmem, bounds_gmem, count_gmem, list_gmem, full_gmem,
    o_gmem, lse_gmem,
    q_smem, k_smem, v_smem, o_smem, row_smem, p_smem,
    q_ready, other_ready, k_barriers, v_barriers,
  ):  # fmt: skip
    b, part, head = (lax.axis_index(name) for name in ("batch", "part", "head"))
    wg = lax.axis_index("wg")
    row, columns = b if maps > 1 else 0, common.columns(dh)
    count = count_gmem[row, 0]
    first = lax.div(count * part, parts)
    steps = lax.div(count * (part + 1), parts) - first
    keys = common.Stream((k_smem,), *k_barriers)
    values = common.Stream((v_smem,), *v_barriers)

    @pl.when(wg == _COMPUTE)
    def _load():
      matrix = (layer_gmem[0] * batch + b) * kv_heads + head

      def sources(i):
        place = (matrix, pl.ds(list_gmem[row, 0, first + i] * BLOCK_K, BLOCK_K), columns)
        return (k_gmem.at[place],), (v_gmem.at[place],)

      common.load(steps, stages, (keys, values), sources)

    @pl.when(wg < _COMPUTE)
    def _compute():
      plgpu.set_max_registers(232, action="increase")
      group, turn = lax.div(wg, key_groups), lax.rem(wg, key_groups)
      own = pl.ds((lax.axis_index("rows") * row_groups + group) * _ROWS, _ROWS)

      @pl.when(turn == 0)
      def _load_queries():
        plgpu.copy_gmem_to_smem(
          q_gmem.at[b, head, own, columns], q_smem.at[group], q_ready.at[group]
        )

      bounds = [
        common.read(bounds_gmem.at[row, n, own], layout=softmax.ROW, optimized=False)
        for n in range(num_bounds)
      ]
      plgpu.barrier_wait(q_ready.at[group])

      def step(n, state):
        i = n * key_groups + turn
        tile, full = list_gmem[row, 0, first + i], full_gmem[row, 0, first + i]
        slot = common.take(keys, i)
        s = common.product(q_smem.at[group], k_smem.at[slot].T)
        common.give_back(keys, slot)
        s = softmax.hide(s, full, lambda: bounds, tile * BLOCK_K)
        state, p = softmax.weigh(state, s, scale_log2, dtype)
        common.take(values, i)
        scratch = None if p_smem is None else p_smem.at[wg]
        acc = softmax.accumulate(state.acc, p, v_smem.at[slot], scratch)
        common.give_back(values, slot)
        return state._replace(acc=acc)

      own_steps = lax.div(steps - turn + key_groups - 1, key_groups)
      state = lax.fori_loop(0, own_steps, step, softmax.start(width))

      def write(state):
        o_smem[group], row_smem[group, 0] = softmax.finish(state)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(o_smem.at[group], o_gmem.at[b, head, part, own])
        plgpu.copy_smem_to_gmem(row_smem.at[group, 0], lse_gmem.at[b, head, part, own])
        plgpu.wait_smem_to_gmem(0)

      if key_groups == 1:
        return write(state)

      @pl.when(turn == 1)
      def _hand_over():
        o_smem[0], row_smem[0, 0], row_smem[0, 1] = state
        plgpu.barrier_arrive(other_ready)

      @pl.when(turn == 0)
      def _join():
        plgpu.barrier_wait(other_ready)
        acc = common.read(o_smem.at[0], layout=softmax.LAYOUT)
        top, total = (common.read(row_smem.at[0, n], layout=softmax.ROW) for n in range(2))
        write(softmax.join(state, softmax.State(acc, top, total)))

  o, lse = plgpu.kernel(
    kernel,
    out_type=(
      jax.ShapeDtypeStruct((batch, kv_heads, parts, q.shape[2], width), jnp.float32),
      jax.ShapeDtypeStruct((batch, kv_heads, parts, padded), jnp.float32),
    ),
    scratch_types=(
      common.matrix((row_groups, _ROWS, width), dtype),
      common.matrix((stages, BLOCK_K, width), dtype),
      common.matrix((stages, BLOCK_K, width), dtype),
      common.matrix((row_groups, _ROWS, width), jnp.float32),
      plgpu.SMEM((row_groups, 2, _ROWS), jnp.float32),
      None if register_operands else common.matrix((_COMPUTE, _ROWS, BLOCK_K), dtype),
      plgpu.Barrier(num_barriers=row_groups),
      plgpu.Barrier(),
      common.barriers(stages, readers=row_groups),
      common.barriers(stages, readers=row_groups),
    ),
    grid=(batch, parts, kv_heads, row_blocks),
    grid_names=("batch", "part", "head", "rows"),
    num_threads=_COMPUTE + 1,
    thread_name="wg",
    kernel_name="sbdjax_decode",
    compiler_params=plgpu.CompilerParams(approx_math=True),
  )(
    q,
    # TMA has five axes, two of which go into the tiles.
    k_NxBxKxSxDh.reshape(-1, *k_NxBxKxSxDh.shape[3:]),
    v_NxBxKxSxDh.reshape(-1, *v_NxBxKxSxDh.shape[3:]),
    layer[None],
    bounds,
    cache.row_count,
    cache.row_tiles,
    cache.row_full,
  )
  return o[:, :, :, :rows, :dh], lse[..., :rows]
