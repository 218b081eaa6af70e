"""The weight product of every projection, with a backward pass that is cheap on CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from sbdjax import pytree

_Kernel = TypeVar("_Kernel", jax.Array, np.ndarray)
# Kernels of [.., .., O], heads and their channels for [I]; all others are [I, ...].
SEVERAL_INPUTS = ("o_kernel",)
# Rows up to which the product of a `Transposed` is computed transposed, too.
_FEW_ROWS = 32


@pytree.dataclass
class Transposed:
  """A weight kept [O, I], as `nn.prepare` lays it out for products of a few rows on a CPU.

  Eigen packs the larger factor before it multiplies. That of [O, I] x [I, T] is packed as it lies,
  which is faster than [T, I] x [I, O] for a few rows T.

  Attributes:
    w: [O, I].
  """

  w: jax.Array

  def times(self, x: jax.Array, dtype: jnp.dtype | None = None) -> jax.Array:
    """[..., I] -> [..., O]; accumulated and returned in `dtype` (None: that of `x`)."""
    rows = x.reshape(-1, x.shape[-1])
    w = self.w.astype(x.dtype)
    if 1 < rows.shape[0] <= _FEW_ROWS:
      y = jnp.einsum("oi,it->ot", w, rows.T, preferred_element_type=dtype)
      # XLA would otherwise turn the product around.
      y = jax.lax.optimization_barrier(y).T
    else:
      y = jnp.einsum("ti,oi->to", rows, w, preferred_element_type=dtype)
    return y.reshape(*x.shape[:-1], -1)


def weight(
  module: nn.Module, name: str, init: Callable, shape: tuple[int, ...], dtype: str
) -> jax.Array | Transposed:
  """The parameter `name` of `module`, for `linear`.

  Args:
    shape: of the parameter; its last axis is the output's where the name is in `SEVERAL_INPUTS`,
      and its first the input's otherwise.

  Returns:
    [I, O], or `Transposed` where the parameters were prepared so.
  """
  prepared: Any = module.get_variable("params", name)
  if isinstance(prepared, Transposed):
    return prepared
  return as_matrix(name, module.param(name, init, shape, dtype))


class Weight(NamedTuple):
  """What `weight` is asked for, its module and dtype apart."""

  name: str
  init: Callable
  shape: tuple[int, ...]


def products(
  module: nn.Module, x_BxTxI: jax.Array, weights: Sequence[Weight], dtype: str
) -> list[jax.Array]:
  """`x` times each of several weights, [B, T, O] each, as `linear` has them.

  One product where `nn.prepare` joined the weights: a processor reads one long array faster than
  several short ones.
  """
  prepared: Any = module.get_variable("params", joined(w.name for w in weights))
  if not isinstance(prepared, Transposed):
    return [linear(x_BxTxI, weight(module, *w, dtype)) for w in weights]
  sizes = [math.prod(w.shape[1:]) for w in weights]
  return jnp.split(prepared.times(x_BxTxI), np.cumsum(sizes)[:-1], axis=-1)


def joined(names: Iterable[str]) -> str:
  """The name that weights have which `nn.prepare` joined."""
  return "+".join(names)


def as_matrix(name: str, kernel: _Kernel) -> _Kernel:
  """The kernel called `name` as [I, O]."""
  inputs = kernel.ndim - 1 if name in SEVERAL_INPUTS else 1
  return kernel.reshape(math.prod(kernel.shape[:inputs]), -1)


def linear(x_BxTxI: jax.Array, w_IxO: jax.Array | Transposed) -> jax.Array:
  """x @ w, [B, T, I] x [I, O] -> [B, T, O], in the dtype of x; not differentiable if `Transposed`."""
  if isinstance(w_IxO, Transposed):
    return w_IxO.times(x_BxTxI)
  return _linear(x_BxTxI, w_IxO.astype(x_BxTxI.dtype))


@jax.custom_vjp
def _linear(x_BxTxI: jax.Array, w_IxO: jax.Array) -> jax.Array:
  """x @ w.

  Autodiff would compute the weight gradient as (g^T x)^T, for which XLA on CPU transposes g, and
  with it recomputes whatever elementwise work made g. Here the narrower operand is the one that
  is transposed; values are the same.
  """
  return x_BxTxI @ w_IxO


def _forward(x: jax.Array, w: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
  return x @ w, (x, w)


def _backward(
  residuals: tuple[jax.Array, jax.Array], g_BxTxO: jax.Array
) -> tuple[jax.Array, jax.Array]:
  x, w = residuals
  if x.shape[-1] <= g_BxTxO.shape[-1]:
    d_w = jnp.einsum("bti,bto->io", x, g_BxTxO)
  else:
    d_w = jnp.einsum("bto,bti->oi", g_BxTxO, x).T
  return g_BxTxO @ w.T, d_w


_linear.defvjp(_forward, _backward)
