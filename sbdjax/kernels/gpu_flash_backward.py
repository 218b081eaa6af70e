"""Masked flash attention for Hopper GPUs: the gradients, with Pallas Mosaic GPU.

Two kernels, so that nothing is added to from several places (Dao, arXiv:2307.08691, section 3.1,
accumulates dq in device memory instead): `dq` walks the key tiles of a query tile as the forward
pass does, `dkv` the query tiles of a key tile, for each query head of the key head in turn. Both
make the probabilities again from the log-sum-exp. Two warpgroups compute, 64 rows of the result
each, in steps: `dq` of a tile of the map, 128 keys, `dkv` of half a tile, 64 queries. A third loads.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from sbdjax.kernels import gpu_common as common
from sbdjax.kernels import gpu_softmax as softmax
from sbdjax.kernels.flash import EMPTY

_COMPUTE, _BLOCK, _ROWS = common.COMPUTE, common.BLOCK, common.WARPGROUP_ROWS
_COLUMN = plgpu.Layout.WGMMA.reduce(0)
_STEP = 64  # queries of a step of `dkv`
_STEPS = _BLOCK // _STEP
_STAGES = 2


def dq(
  q_BxHxTxDh: jax.Array,
  k_BxKxSxDh: jax.Array,
  v_BxKxSxDh: jax.Array,
  d_o_BxHxTxDh: jax.Array,
  lse_BxHxT: jax.Array,
  delta_BxHxT: jax.Array,
  plan: common.GPUPlan,
  scale: float,
  *,
  register_operands: bool = True,
) -> jax.Array:
  """Gradient of the queries; arguments as `flash.FlashKernels` and `gpu_flash.forward` say.

  Returns:
    [B, H, T, Dh] in q's dtype.

  Raises:
    UsageError: from `gpu_common.check`.
  """
  batch, heads, num_queries, dh = q_BxHxTxDh.shape
  kv_heads = k_BxKxSxDh.shape[1]
  dtype = q_BxHxTxDh.dtype
  common.check(dtype, dh)
  maps, num_bounds, padded = plan.map.bounds.shape
  scale_log2 = scale * common.LOG2_E
  width = common.width(dh)
  q, k, v, d_o = map(common.eights, (q_BxHxTxDh, k_BxKxSxDh, v_BxKxSxDh, d_o_BxHxTxDh))
  # More than two intervals need registers that a whole tile of keys leaves none of.
  key_step = _BLOCK if num_bounds <= 4 else _BLOCK // 2
  a_tile = _BLOCK // key_step  # steps
  tile_shape = (_ROWS, key_step)

  def kernel(
    q_gmem, k_gmem, v_gmem, d_o_gmem, lse_gmem, delta_gmem,
    bounds_gmem, order_gmem, count_gmem, list_gmem, full_gmem,
    dq_gmem,
    q_smem, d_o_smem, bounds_smem, k_smem, v_smem, ds_smem, rows_ready, k_barriers, v_barriers,
  ):  # fmt: skip
    b, head, wg = lax.axis_index("batch"), lax.axis_index("head"), lax.axis_index("wg")
    row, columns = b if maps > 1 else 0, common.columns(dh)
    tile = order_gmem[row, lax.axis_index("tile")]
    steps = count_gmem[row, tile] * a_tile
    keys = common.Stream((k_smem,), *k_barriers)
    values = common.Stream((v_smem,), *v_barriers)

    def place_of(i):
      """(place in the list of key tiles, first key) of a step."""
      place = lax.div(i, a_tile)
      return place, list_gmem[row, tile, place] * _BLOCK + lax.rem(i, a_tile) * key_step

    @pl.when(wg == _COMPUTE)
    def _load():
      kv_head = lax.div(head, heads // kv_heads)

      def sources(i):
        place = (b, kv_head, pl.ds(place_of(i)[1], key_step), columns)
        return (k_gmem.at[place],), (v_gmem.at[place],)

      common.load(steps, _STAGES, (keys, values), sources)

    @pl.when(wg < _COMPUTE)
    def _compute():
      plgpu.set_max_registers(232, action="increase")
      rows = pl.ds(tile * _BLOCK + wg * _ROWS, _ROWS)
      plgpu.copy_gmem_to_smem(q_gmem.at[b, head, rows, columns], q_smem.at[wg], rows_ready.at[wg])
      plgpu.copy_gmem_to_smem(
        d_o_gmem.at[b, head, rows, columns], d_o_smem.at[wg], rows_ready.at[wg]
      )
      plgpu.copy_gmem_to_smem(bounds_gmem.at[row, :, rows], bounds_smem.at[wg], rows_ready.at[wg])

      def load_row(ref):
        return plgpu.load(ref.at[b, head, rows], layout=softmax.ROW, optimized=False)

      def bounds():  # kept in shared memory: registers are scarce
        load = lambda n: plgpu.load(bounds_smem.at[wg, n], layout=softmax.ROW)
        return [load(n) for n in range(num_bounds)]

      lse_log2, delta = load_row(lse_gmem) * common.LOG2_E, load_row(delta_gmem)
      plgpu.barrier_wait(rows_ready.at[wg])

      def step(i, dq_acc):
        place, first_key = place_of(i)
        full = full_gmem[row, tile, place]
        slot = common.take(keys, i)
        s = common.product(q_smem.at[wg], k_smem.at[slot].T)
        s = softmax.hide(s, full, bounds, first_key)
        common.take(values, i)

        def multiply(dp_acc):
          plgpu.wgmma(dp_acc, d_o_smem.at[wg], v_smem.at[slot].T)
          # Meanwhile:
          p = jnp.exp2(s * scale_log2 - common.rows_of(lse_log2, tile_shape))
          return p, dp_acc[...]

        p, dp = pl.run_scoped(multiply, plgpu.ACC(tile_shape, jnp.float32))
        common.give_back(values, slot)
        ds = (p * (dp - common.rows_of(delta, tile_shape))).astype(dtype)
        ds = common.operand(ds, None if ds_smem is None else ds_smem.at[wg])
        plgpu.wgmma(dq_acc, ds, k_smem.at[slot])
        plgpu.wgmma_wait(0)
        common.give_back(keys, slot)

      def run(dq_acc):
        pl.loop(0, steps)(lambda i: step(i, dq_acc))
        return dq_acc[...]

      result = pl.run_scoped(run, plgpu.ACC((_ROWS, width), jnp.float32))
      q_smem[wg] = (result * scale).astype(dtype)
      plgpu.commit_smem()
      plgpu.copy_smem_to_gmem(q_smem.at[wg], dq_gmem.at[b, head, rows, columns])
      plgpu.wait_smem_to_gmem(0)

  result = plgpu.kernel(
    kernel,
    out_type=jax.ShapeDtypeStruct(q.shape, dtype),
    scratch_types=(
      common.matrix((_COMPUTE, _ROWS, width), dtype),
      common.matrix((_COMPUTE, _ROWS, width), dtype),
      plgpu.SMEM((_COMPUTE, num_bounds, _ROWS), jnp.int32),
      common.matrix((_STAGES, key_step, width), dtype),
      common.matrix((_STAGES, key_step, width), dtype),
      None if register_operands else common.matrix((_COMPUTE, *tile_shape), dtype),
      plgpu.Barrier(num_arrivals=3, num_barriers=_COMPUTE),
      common.barriers(_STAGES),
      common.barriers(_STAGES),
    ),
    grid=(padded // _BLOCK, batch, heads),
    grid_names=("tile", "batch", "head"),
    num_threads=_COMPUTE + 1,
    thread_name="wg",
    kernel_name="sbdjax_flash_dq",
    compiler_params=plgpu.CompilerParams(approx_math=True),
  )(
    q,
    k,
    v,
    d_o,
    _pad(lse_BxHxT, padded, EMPTY),
    _pad(delta_BxHxT, padded, 0.0),
    plan.map.bounds,
    plan.row_order,
    plan.map.row_count,
    plan.map.row_tiles,
    plan.map.row_full,
  )
  return result[:, :, :num_queries]


def dkv(
  q_BxHxTxDh: jax.Array,
  k_BxKxSxDh: jax.Array,
  v_BxKxSxDh: jax.Array,
  d_o_BxHxTxDh: jax.Array,
  lse_BxHxT: jax.Array,
  delta_BxHxT: jax.Array,
  plan: common.GPUPlan,
  scale: float,
  *,
  register_operands: bool = True,
) -> tuple[jax.Array, jax.Array]:
  """Gradients of keys and values, summed over the query heads of each key head in the kernel.

  Scores are computed transposed, keys by queries, so that their tiles are left operands.

  Returns:
    (dk, dv), [B, K, S, Dh] in k's dtype.

  Raises:
    UsageError: from `gpu_common.check`.
  """
  batch, heads, _, dh = q_BxHxTxDh.shape
  kv_heads = k_BxKxSxDh.shape[1]
  dtype = k_BxKxSxDh.dtype
  common.check(dtype, dh)
  maps, num_bounds, padded = plan.map.bounds.shape
  group = heads // kv_heads
  scale_log2 = scale * common.LOG2_E
  width = common.width(dh)
  q, k, v, d_o = map(common.eights, (q_BxHxTxDh, k_BxKxSxDh, v_BxKxSxDh, d_o_BxHxTxDh))
  tile_shape = (_ROWS, _STEP)

  def kernel(
    q_gmem, k_gmem, v_gmem, d_o_gmem, lse_gmem, delta_gmem,
    bounds_gmem, order_gmem, count_gmem, list_gmem, full_gmem,
    dk_gmem, dv_gmem,
    k_smem, v_smem, q_smem, lse_smem, bounds_smem, d_o_smem, delta_smem, p_smem,
    rows_ready, q_barriers, d_o_barriers,
  ):  # fmt: skip
    b, kv_head, wg = lax.axis_index("batch"), lax.axis_index("head"), lax.axis_index("wg")
    row, columns = b if maps > 1 else 0, common.columns(dh)
    tile = order_gmem[row, lax.axis_index("tile")]
    steps = count_gmem[row, tile] * group * _STEPS
    queries = common.Stream((q_smem, lse_smem, bounds_smem), *q_barriers)
    gradients = common.Stream((d_o_smem, delta_smem), *d_o_barriers)

    def place_of(i):
      """(query head, place in the list of query tiles, first query) of a step."""
      place = lax.div(i, group * _STEPS)
      first = list_gmem[row, tile, place] * _BLOCK + lax.rem(i, _STEPS) * _STEP
      return kv_head * group + lax.rem(lax.div(i, _STEPS), group), place, first

    @pl.when(wg == _COMPUTE)
    def _load():
      def sources(i):
        head, _, first = place_of(i)
        rows = (b, head, pl.ds(first, _STEP))
        return (
          (
            q_gmem.at[*rows, columns],
            lse_gmem.at[rows],
            bounds_gmem.at[row, :, pl.ds(first, _STEP)],
          ),
          (d_o_gmem.at[*rows, columns], delta_gmem.at[rows]),
        )

      common.load(steps, _STAGES, (queries, gradients), sources)

    @pl.when(wg < _COMPUTE)
    def _compute():
      plgpu.set_max_registers(232, action="increase")
      first_key = tile * _BLOCK + wg * _ROWS
      keys = pl.ds(first_key, _ROWS)
      plgpu.copy_gmem_to_smem(
        k_gmem.at[b, kv_head, keys, columns], k_smem.at[wg], rows_ready.at[wg]
      )
      plgpu.copy_gmem_to_smem(
        v_gmem.at[b, kv_head, keys, columns], v_smem.at[wg], rows_ready.at[wg]
      )
      plgpu.barrier_wait(rows_ready.at[wg])
      scratch = None if p_smem is None else p_smem.at[wg]

      def step(i, dk_acc, dv_acc):
        _, place, _ = place_of(i)
        full = full_gmem[row, tile, place]
        slot = common.take(queries, i)

        s = common.product(k_smem.at[wg], q_smem.at[slot].T)

        def masked():
          bounds = [
            common.columns_of(plgpu.load(bounds_smem.at[slot, n], layout=_COLUMN), tile_shape)
            for n in range(num_bounds)
          ]
          index = plgpu.broadcasted_iota(jnp.int32, tile_shape, 0, layout=softmax.LAYOUT)
          return jnp.where(common.visible(bounds, index + first_key), s, -jnp.inf)

        s = lax.cond(full == 1, lambda: s, masked)
        lse_log2 = plgpu.load(lse_smem.at[slot], layout=_COLUMN) * common.LOG2_E
        p = jnp.exp2(s * scale_log2 - common.columns_of(lse_log2, tile_shape))
        common.take(gradients, i)

        def multiply(dp_acc):
          plgpu.wgmma(dp_acc, v_smem.at[wg], d_o_smem.at[slot].T)
          plgpu.wgmma(dv_acc, common.operand(p.astype(dtype), scratch), d_o_smem.at[slot])
          # The gradient of the scores needs the first product only, while the second runs.
          return plgpu.wgmma_accumulator_load(dp_acc, wait_n=1)

        dp = pl.run_scoped(multiply, plgpu.ACC(tile_shape, jnp.float32))
        delta = plgpu.load(delta_smem.at[slot], layout=_COLUMN)
        ds = (p * (dp - common.columns_of(delta, tile_shape))).astype(dtype)
        plgpu.wgmma(dk_acc, common.operand(ds, scratch), q_smem.at[slot])
        plgpu.wgmma_wait(1)
        common.give_back(gradients, slot)
        plgpu.wgmma_wait(0)
        common.give_back(queries, slot)

      def run(dk_acc, dv_acc):
        pl.loop(0, steps)(lambda i: step(i, dk_acc, dv_acc))
        return dk_acc[...], dv_acc[...]

      accumulator = plgpu.ACC((_ROWS, width), jnp.float32)
      dk, dv = pl.run_scoped(run, accumulator, accumulator)
      k_smem[wg] = (dk * scale).astype(dtype)
      v_smem[wg] = dv.astype(dtype)
      plgpu.commit_smem()
      plgpu.copy_smem_to_gmem(k_smem.at[wg], dk_gmem.at[b, kv_head, keys, columns])
      plgpu.copy_smem_to_gmem(v_smem.at[wg], dv_gmem.at[b, kv_head, keys, columns])
      plgpu.wait_smem_to_gmem(0)

  dk, dv = plgpu.kernel(
    kernel,
    out_type=(
      jax.ShapeDtypeStruct(k.shape, dtype),
      jax.ShapeDtypeStruct(v.shape, dtype),
    ),
    scratch_types=(
      common.matrix((_COMPUTE, _ROWS, width), dtype),
      common.matrix((_COMPUTE, _ROWS, width), dtype),
      common.matrix((_STAGES, _STEP, width), dtype),
      plgpu.SMEM((_STAGES, _STEP), jnp.float32),
      plgpu.SMEM((_STAGES, num_bounds, _STEP), jnp.int32),
      common.matrix((_STAGES, _STEP, width), dtype),
      plgpu.SMEM((_STAGES, _STEP), jnp.float32),
      None if register_operands else common.matrix((_COMPUTE, *tile_shape), dtype),
      plgpu.Barrier(num_arrivals=2, num_barriers=_COMPUTE),
      common.barriers(_STAGES, pieces=3),
      common.barriers(_STAGES, pieces=2),
    ),
    grid=(plan.map.col_count.shape[1], batch, kv_heads),
    grid_names=("tile", "batch", "head"),
    num_threads=_COMPUTE + 1,
    thread_name="wg",
    kernel_name="sbdjax_flash_dkv",
    compiler_params=plgpu.CompilerParams(approx_math=True),
  )(
    q,
    k,
    v,
    d_o,
    _pad(lse_BxHxT, padded, EMPTY),
    _pad(delta_BxHxT, padded, 0.0),
    plan.map.bounds,
    plan.col_order,
    plan.map.col_count,
    plan.map.col_tiles,
    plan.map.col_full,
  )
  num_keys = k_BxKxSxDh.shape[2]
  return dk[:, :, :num_keys], dv[:, :, :num_keys]


def _pad(x_BxHxT, length, value):
  """To whole tiles: TMA wants rows of a multiple of 16 bytes."""
  pad = length - x_BxHxT.shape[2]
  return jnp.pad(x_BxHxT, ((0, 0), (0, 0), (0, pad)), constant_values=value) if pad else x_BxHxT
