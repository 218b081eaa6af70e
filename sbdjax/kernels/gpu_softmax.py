"""The running softmax of the Hopper kernels: a warpgroup's 64 rows of scores, a tile at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from sbdjax.kernels import gpu_common as common
from sbdjax.kernels.flash import EMPTY

Array = jax.Array
LAYOUT = plgpu.Layout.WGMMA  # of a matrix in registers
ROW = plgpu.Layout.WGMMA.reduce(1)  # of one value a row


class State(NamedTuple):
  """Of 64 rows, in registers.

  Attributes:
    acc: float32 [64, Dh], values weighed by exp2(scaled score - top).
    top: float32 [64], the largest scaled score so far; never below EMPTY.
    total: float32 [64], sum of the weights.
  """

  acc: Array
  top: Array
  total: Array


def start(head_dim: int) -> State:
  rows = common.WARPGROUP_ROWS
  return State(
    plgpu.layout_cast(jnp.zeros((rows, head_dim), jnp.float32), LAYOUT),
    plgpu.layout_cast(jnp.full((rows,), EMPTY, jnp.float32), ROW),
    plgpu.layout_cast(jnp.zeros((rows,), jnp.float32), ROW),
  )


def hide(s: Array, full: Array, bounds: Callable[[], Sequence[Array]], first_key: Array) -> Array:
  """Scores [64, keys] with -inf where a row does not see a key; unchanged where `full` is 1.

  Args:
    bounds: () -> int32 [64] each, start and end of the intervals of every row.
    first_key: index of the first column.
  """

  def compare():
    keys = plgpu.broadcasted_iota(jnp.int32, s.shape, 1, layout=LAYOUT) + first_key
    seen = common.visible([common.rows_of(x, s.shape) for x in bounds()], keys)
    return jnp.where(seen, s, -jnp.inf)

  return lax.cond(full == 1, lambda: s, compare)


def weigh(state: State, s: Array, scale_log2: float, dtype: Any) -> tuple[State, Array]:
  """The weights of a tile of scores, in `dtype`, and the state rescaled to go with them."""
  # `top` stays finite, so a row that has seen nothing yet gives exp2(-inf), not NaN.
  top = jnp.maximum(state.top, s.max(axis=1) * scale_log2)
  alpha = jnp.exp2(state.top - top)
  p = jnp.exp2(s * scale_log2 - common.rows_of(top, s.shape))
  total = state.total * alpha + p.sum(axis=1)
  acc = state.acc * common.rows_of(alpha, state.acc.shape)
  return State(acc, top, total), p.astype(dtype)


def join(a: State, b: State) -> State:
  """The state of two disjoint sets of keys together."""
  top = jnp.maximum(a.top, b.top)
  weights = jnp.exp2(a.top - top), jnp.exp2(b.top - top)
  acc: Any = 0.0
  total: Any = 0.0
  for state, weight in zip((a, b), weights, strict=True):
    acc = acc + state.acc * common.rows_of(weight, state.acc.shape)
    total = total + state.total * weight
  return State(acc, top, total)


def accumulate(acc: Array, p: Array, v_ref: common.Ref, scratch: common.Ref | None) -> Array:
  """acc + p @ v, with p from registers; by way of `scratch` where it is given."""
  if scratch is not None:
    return acc + common.product(common.operand(p, scratch), v_ref)
  return pl.run_state(lambda ref: plgpu.wgmma(ref, p, v_ref))(plgpu.ACC.init(acc))


def finish(state: State) -> tuple[Array, Array]:
  """(output, log-sum-exp): float32 [64, Dh] and [64]; zeros and EMPTY for a row that saw nothing."""
  seen = state.total > 0.0
  total = jnp.where(seen, state.total, 1.0)
  o = state.acc * common.rows_of(1.0 / total, state.acc.shape)
  return o, jnp.where(seen, (state.top + jnp.log2(total)) / common.LOG2_E, EMPTY)
