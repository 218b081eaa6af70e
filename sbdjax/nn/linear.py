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
from sbdjax.nn import summed

_Kernel = TypeVar("_Kernel", jax.Array, np.ndarray)
# Kernels of [.., .., O], heads and their channels for [I]; all others are [I, ...].
SEVERAL_INPUTS = ("o_kernel",)
# Rows up to which the product of a `Transposed` is computed transposed, too.
_FEW_ROWS = 32
# More rows than these are multiplied by eights.
_WHOLE_ROWS = 4


@pytree.dataclass
class Transposed(pytree.Struct):
  """A weight kept [O, I], as `nn.prepare` lays it out for products of a few rows on a CPU.

  Eigen packs the larger factor before it multiplies. That of [O, I] x [I, T] is packed as it lies,
  which is faster than [T, I] x [I, O] for a few rows T.

  Attributes:
    w: [O, I].
    summed: whether products of a few rows may be sums, as `nn.summed` has them: for programs that are
      compiled with its options.
  """

  w: jax.Array
  summed: bool = pytree.static(default=False)

  def times(
    self, x: jax.Array, product_dtype: str = "", dtype: jnp.dtype | None = None
  ) -> jax.Array:
    """[..., I] -> [..., O], as `linear`; returned in `dtype` (None: that of `x`)."""
    dtype = x.dtype if dtype is None else dtype
    w, rows = _rounded(self.w, x.reshape(-1, x.shape[-1]), product_dtype)
    count = rows.shape[0]
    if self.summed and summed.pays(count, w):
      return summed.product(w, rows).astype(dtype).reshape(*x.shape[:-1], -1)
    rows = jnp.pad(rows, ((0, _padded(count, w.dtype) - count), (0, 0)))
    if 1 < rows.shape[0] <= _FEW_ROWS:
      y = jnp.einsum("oi,ti->ot", w, rows, preferred_element_type=dtype)
      # XLA would otherwise turn the product around.
      y = jax.lax.optimization_barrier(y).T
    else:
      y = jnp.einsum("ti,oi->to", rows, w, preferred_element_type=dtype)
    return y[:count].reshape(*x.shape[:-1], -1)


def _padded(rows: int, dtype: jnp.dtype) -> int:
  """Rows with which a product of so many is computed on a CPU.

  Of five to seven rows it takes longer than of eight, and so on. XLA has fast products of bfloat16,
  but none of a matrix and a vector.
  """
  if rows == 1:
    return 2 if dtype == jnp.bfloat16 else 1
  return -(-rows // 8) * 8 if _WHOLE_ROWS < rows <= _FEW_ROWS else rows


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
  module: nn.Module,
  x_BxTxI: jax.Array,
  weights: Sequence[Weight],
  dtype: str,
  product_dtype: str = "",
) -> list[jax.Array]:
  """`x` times each of several weights, [B, T, O] each, as `linear` has them.

  One product where `nn.prepare` joined the weights: a processor reads one long array faster than
  several short ones.
  """
  prepared: Any = module.get_variable("params", joined(w.name for w in weights))
  if not isinstance(prepared, Transposed):
    return [linear(x_BxTxI, weight(module, *w, dtype), product_dtype) for w in weights]
  sizes = [math.prod(w.shape[1:]) for w in weights]
  return jnp.split(prepared.times(x_BxTxI, product_dtype), np.cumsum(sizes)[:-1], axis=-1)


def joined(names: Iterable[str]) -> str:
  """The name that weights have which `nn.prepare` joined."""
  return "+".join(names)


def as_matrix(name: str, kernel: _Kernel) -> _Kernel:
  """The kernel called `name` as [I, O]."""
  inputs = kernel.ndim - 1 if name in SEVERAL_INPUTS else 1
  return kernel.reshape(math.prod(kernel.shape[:inputs]), -1)


def linear(x_BxTxI: jax.Array, w_IxO: jax.Array | Transposed, product_dtype: str = "") -> jax.Array:
  """x @ w, [B, T, I] x [I, O] -> [B, T, O], in the dtype of x; not differentiable if `Transposed`.

  Args:
    product_dtype: what both factors are rounded to before they are multiplied (and the gradient of
      the result, in the backward pass); "": the dtype of x.
  """
  if isinstance(w_IxO, Transposed):
    return w_IxO.times(x_BxTxI, product_dtype)
  return _linear(x_BxTxI, w_IxO, product_dtype, None)


def to_vocabulary(
  hidden: jax.Array, head_VxD: jax.Array | Transposed, product_dtype: str = ""
) -> jax.Array:
  """float32 logits [..., V] of hidden states [..., D]; `product_dtype` as of `linear`."""
  if isinstance(head_VxD, Transposed):
    return head_VxD.times(hidden, product_dtype, jnp.float32)
  if not product_dtype:
    w = head_VxD.astype(hidden.dtype)
    return jnp.einsum("...d,vd->...v", hidden, w, preferred_element_type=jnp.float32)
  return _linear(hidden, head_VxD.T, product_dtype, jnp.float32)


def _rounded(w: jax.Array, x: jax.Array, product_dtype: str) -> tuple[jax.Array, jax.Array]:
  """The factors of a product, as they are multiplied."""
  dtype = product_dtype or x.dtype
  return w.astype(dtype), x.astype(dtype)


def _product(
  x: jax.Array, w_IxO: jax.Array, product_dtype: str, dtype: jnp.dtype | None
) -> jax.Array:
  """x @ w, accumulated in float32 at least, in `dtype` (None: that of x)."""
  w, rounded = _rounded(w_IxO, x, product_dtype)
  return _contract(rounded, w, (x.ndim - 1,), (0,), x.dtype if dtype is None else dtype)


def _contract(
  a: jax.Array, b: jax.Array, axes_a: Sequence[int], axes_b: Sequence[int], dtype: jnp.dtype
) -> jax.Array:
  """The sum over `axes_a` of a and `axes_b` of b, taken in the wider dtype and given in `dtype`."""
  wider = jnp.promote_types(a.dtype, dtype)
  numbers = ((tuple(axes_a), tuple(axes_b)), ((), ()))
  return jax.lax.dot_general(a, b, numbers, preferred_element_type=wider).astype(dtype)


# Autodiff would compute the weight gradient as (g^T x)^T, for which XLA on CPU transposes g, and
# with it recomputes whatever elementwise work made g. Here the narrower operand is the one that
# is transposed; values are the same.
_linear = jax.custom_vjp(_product, nondiff_argnums=(2, 3))


def _forward(
  x: jax.Array, w: jax.Array, product_dtype: str, dtype: jnp.dtype | None
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
  # The product itself, not `_linear`: what remat's policies may keep is seen by its primitive.
  return _product(x, w, product_dtype, dtype), (x, w)


def _backward(
  product_dtype: str,
  dtype: jnp.dtype | None,
  residuals: tuple[jax.Array, jax.Array],
  g: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  del dtype
  x, w = residuals
  w_IxO, rounded = _rounded(w, x, product_dtype)
  g = g.astype(rounded.dtype)
  rows = tuple(range(x.ndim - 1))
  if x.shape[-1] <= g.shape[-1]:
    d_w = _contract(rounded, g, rows, rows, w.dtype)
  else:
    d_w = _contract(g, rounded, rows, rows, w.dtype).T
  return _contract(g, w_IxO, (x.ndim - 1,), (1,), x.dtype), d_w


_linear.defvjp(_forward, _backward)
