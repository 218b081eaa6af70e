"""Everything a training run carries from one update to the next, as one pytree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from sbdjax import pytree

PyTree = Any


@pytree.dataclass
class TrainState(pytree.Struct):
  """State of a run after `step` updates.

  Attributes:
    step: int32 [], updates done so far.
    params: the model's parameters.
    opt_state: state of the optax transformation, moments in the shapes of `params`.
    ema_params: exponential moving average of `params`, or None where it is off.
    key: typed PRNG key of the run. It never changes: update number s draws from
      `fold_in(key, s)`, so a resumed run needs no replay.
    teacher: parameters that the loss learns from and no update changes; None where it has none.
  """

  step: jax.Array
  params: PyTree
  opt_state: PyTree
  ema_params: PyTree | None
  key: jax.Array
  teacher: PyTree | None = None


def create(
  params: PyTree,
  tx: optax.GradientTransformation,
  key: jax.Array,
  *,
  ema: bool = False,
  teacher: PyTree | None = None,
) -> TrainState:
  """The state before the first update. Pure: works under `jax.jit` and `jax.eval_shape`."""
  # The update donates its input, and one buffer cannot be donated twice.
  copied = lambda tree: jax.tree.map(jnp.copy, tree)
  return TrainState(
    step=jnp.zeros((), jnp.int32),
    params=params,
    opt_state=tx.init(params),
    ema_params=copied(params) if ema else None,
    key=key,
    teacher=copied(teacher),
  )


def leaf_names(tree: PyTree) -> dict[str, Any]:
  """Leaves by path, e.g. `params/layers/attn/q_kernel`; tuple positions are written as numbers."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def map_with_names(fn: Callable[[str, Any], Any], tree: PyTree) -> PyTree:
  """`jax.tree.map` whose function takes (path as in `leaf_names`, leaf)."""
  return jax.tree_util.tree_map_with_path(
    lambda path, leaf: fn(jax.tree_util.keystr(path, simple=True, separator="/"), leaf), tree
  )


def abstract(make: Callable[[], TrainState], shardings: Callable[[PyTree], PyTree]) -> TrainState:
  """Shapes, dtypes and shardings of the state `make` would build, without building it.

  Args:
    make: () -> state, traceable.
    shardings: abstract state -> pytree of shardings of the same structure.
  """
  shapes = jax.eval_shape(make)
  return jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings(shapes)
  )
