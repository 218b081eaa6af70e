"""Masked flash attention for Hopper GPUs: the forward kernel, with Pallas Mosaic GPU.

A block of threads takes 128 queries of one head: two warpgroups of 64 queries each compute, a third
moves the tiles of keys and values that the tile map lists into shared memory, some steps ahead
(TMA). Empty tiles are not in the list; full ones skip the compare with the intervals. While one
warpgroup is at its softmax the other has the tensor cores (FlashAttention-3, arXiv:2407.08608,
section 3.1).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from sbdjax.kernels import gpu_common as common
from sbdjax.kernels import gpu_softmax as softmax

_COMPUTE, _BLOCK, _ROWS = common.COMPUTE, common.BLOCK, common.WARPGROUP_ROWS


def forward(
  q_BxHxTxDh: jax.Array,
  k_BxKxSxDh: jax.Array,
  v_BxKxSxDh: jax.Array,
  plan: common.GPUPlan,
  scale: float,
  *,
  register_operands: bool = True,
) -> tuple[jax.Array, jax.Array]:
  """softmax(scale q k^T) v over the keys each query sees.

  Args:
    q_BxHxTxDh: queries, bfloat16 or float16, Dh 128 or up to 64 in eights; H is a multiple of K.
    k_BxKxSxDh: keys.
    v_BxKxSxDh: values.
    plan: of the mask, for T queries and S keys.
    scale: of the scores, > 0.
    register_operands: the left operand of a product may come from registers. The interpreter of
      JAX 0.11 multiplies from shared memory only: False there.

  Returns:
    (o [B, H, T, Dh] in q's dtype, log-sum-exp [B, H, T] float32). A query that sees no key gives
    zeros and `flash.EMPTY`.

  Raises:
    UsageError: from `gpu_common.check`.
  """
  batch, heads, num_queries, dh = q_BxHxTxDh.shape
  kv_heads = k_BxKxSxDh.shape[1]
  dtype = q_BxHxTxDh.dtype
  common.check(dtype, dh)
  maps, num_bounds, padded = plan.map.bounds.shape
  width = common.width(dh)
  stages = 2 * 128 // width  # 128 KB of keys and values
  q, k, v = map(common.eights, (q_BxHxTxDh, k_BxKxSxDh, v_BxKxSxDh))
  scale_log2 = scale * common.LOG2_E

  def kernel(
    q_gmem, k_gmem, v_gmem, bounds_gmem, order_gmem, count_gmem, list_gmem, full_gmem,
    o_gmem, lse_gmem,
    q_smem, k_smem, v_smem, lse_smem, p_smem, q_ready, k_barriers, v_barriers, turn,
  ):  # fmt: skip
    b, head, wg = lax.axis_index("batch"), lax.axis_index("head"), lax.axis_index("wg")
    row, columns = b if maps > 1 else 0, common.columns(dh)
    tile = order_gmem[row, lax.axis_index("tile")]
    count = count_gmem[row, tile]
    keys = common.Stream((k_smem,), *k_barriers)
    values = common.Stream((v_smem,), *v_barriers)

    @pl.when(wg == _COMPUTE)
    def _load():
      kv_head = lax.div(head, heads // kv_heads)

      def sources(i):
        place = (b, kv_head, pl.ds(list_gmem[row, tile, i] * _BLOCK, _BLOCK), columns)
        return (k_gmem.at[place],), (v_gmem.at[place],)

      common.load(count, stages, (keys, values), sources)

    @pl.when(wg < _COMPUTE)
    def _compute():
      plgpu.set_max_registers(232, action="increase")
      rows = pl.ds(tile * _BLOCK + wg * _ROWS, _ROWS)
      plgpu.copy_gmem_to_smem(q_gmem.at[b, head, rows, columns], q_smem.at[wg], q_ready.at[wg])
      bounds = [
        plgpu.load(bounds_gmem.at[row, n, rows], layout=softmax.ROW, optimized=False)
        for n in range(num_bounds)
      ]
      plgpu.barrier_wait(q_ready.at[wg])

      def swap_turns():
        plgpu.barrier_arrive(turn)
        plgpu.barrier_wait(turn)

      # The second warpgroup starts when the first has issued its first product: from then on one
      # is at its softmax while the other multiplies.
      pl.when(wg == 1)(swap_turns)

      def step(i, state):
        key_tile, full = list_gmem[row, tile, i], full_gmem[row, tile, i]
        slot = common.take(keys, i)

        def multiply(acc_ref):
          plgpu.wgmma(acc_ref, q_smem.at[wg], k_smem.at[slot].T)
          swap_turns()
          return acc_ref[...]

        s = pl.run_scoped(multiply, plgpu.ACC((_ROWS, _BLOCK), jnp.float32))
        common.give_back(keys, slot)
        s = softmax.hide(s, full, lambda: bounds, key_tile * _BLOCK)
        # The barrier of the compiler keeps the softmax on this side of those that follow.
        state, p = lax.optimization_barrier(softmax.weigh(state, s, scale_log2, dtype))

        plgpu.barrier_arrive(turn)
        common.take(values, i)
        plgpu.barrier_wait(turn)
        scratch = None if p_smem is None else p_smem.at[wg]
        acc = softmax.accumulate(state.acc, p, v_smem.at[slot], scratch)
        common.give_back(values, slot)
        return state._replace(acc=acc)

      state = lax.fori_loop(0, count, step, softmax.start(width))
      pl.when(wg == 0)(swap_turns)

      o, lse_smem[wg] = softmax.finish(state)
      q_smem[wg] = o.astype(dtype)
      plgpu.commit_smem()
      plgpu.copy_smem_to_gmem(q_smem.at[wg], o_gmem.at[b, head, rows, columns])
      plgpu.copy_smem_to_gmem(lse_smem.at[wg], lse_gmem.at[b, head, rows])
      plgpu.wait_smem_to_gmem(0)

  o, lse = plgpu.kernel(
    kernel,
    out_type=(
      jax.ShapeDtypeStruct(q.shape, dtype),
      jax.ShapeDtypeStruct((batch, heads, padded), jnp.float32),
    ),
    scratch_types=(
      common.matrix((_COMPUTE, _ROWS, width), dtype),
      common.matrix((stages, _BLOCK, width), dtype),
      common.matrix((stages, _BLOCK, width), dtype),
      plgpu.SMEM((_COMPUTE, _ROWS), jnp.float32),
      None if register_operands else common.matrix((_COMPUTE, _ROWS, _BLOCK), dtype),
      plgpu.Barrier(num_barriers=_COMPUTE),
      common.barriers(stages),
      common.barriers(stages),
      plgpu.Barrier(num_arrivals=_COMPUTE),
    ),
    grid=(padded // _BLOCK, batch, heads),
    grid_names=("tile", "batch", "head"),
    num_threads=_COMPUTE + 1,
    thread_name="wg",
    kernel_name="sbdjax_flash_forward",
    compiler_params=plgpu.CompilerParams(approx_math=True),
  )(
    q,
    k,
    v,
    plan.map.bounds,
    plan.row_order,
    plan.map.row_count,
    plan.map.row_tiles,
    plan.map.row_full,
  )
  return o[:, :, :num_queries], lse[..., :num_queries]
