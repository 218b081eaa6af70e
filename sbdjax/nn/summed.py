"""Products of a few rows as sums, which read weights as fast as the product of one row does.

XLA has no product of a matrix and a few vectors for CPUs. It calls Eigen, which packs the weights
before it multiplies by them: that takes longer than reading them from memory. Here a product is one
loop over the weights with a sum for each row, which LLVM vectorises where it may add in any order:
programs are compiled with `COMPILER_OPTIONS`, without which the same sums take several times as long.
`experiments/benchmarks/cases_prepare.py` measures them.
"""

from __future__ import annotations

import math
import os

import jax
import jax.numpy as jnp
import numpy as np

# Sums may be taken in any order; what is infinite or not a number in the weights stays so.
COMPILER_OPTIONS = {
  "xla_cpu_enable_fast_math": True,
  "xla_cpu_fast_math_honor_nans": True,
  "xla_cpu_fast_math_honor_infs": True,
  "xla_cpu_fast_math_honor_division": True,
  "xla_cpu_fast_math_honor_functions": True,
}
# Small weights stay in a processor's cache, where Eigen is as fast.
_LARGE = 2**17
# Of more rows the sums are too many for the registers, and of longer ones for the nearest cache.
_ROWS, _INPUTS = 5, 1024
# A loop runs on one core. More cores share the outputs, this many at most.
_PARTS = 4
_GROUP = 16


def pays(rows: int, w_OxI: jax.Array) -> bool:
  """Whether sums are the faster product of so many rows."""
  few = 1 < rows <= _ROWS and w_OxI.shape[1] <= _INPUTS
  # XLA has a fast product of a matrix and one vector, but not of bfloat16.
  one = rows == 1 and w_OxI.dtype == jnp.bfloat16
  return w_OxI.size >= _LARGE and (few or rows == 2 or one)


def product(w_OxI: jax.Array, x_TxI: jax.Array) -> jax.Array:
  """`x @ w.T`, float32 [T, O], of [O, I] and [T, I] in any dtype of floats."""
  rows = max(2, len(x_TxI))  # a loop with a single sum is not vectorised
  x = computed(jnp.pad(x_TxI.astype(jnp.float32), ((0, rows - len(x_TxI)), (0, 0))))
  zeros = [np.float32(0)] * rows
  add = lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True))

  def part(w_PxI: jax.Array) -> jax.Array:
    terms = [w_PxI.astype(jnp.float32) * row for row in x]
    return jnp.stack(jax.lax.reduce(terms, zeros, add, (1,)))

  count = min(_PARTS, _cores(), w_OxI.size // _LARGE)
  bounds = np.linspace(0, len(w_OxI), count + 1).astype(int)
  parts = [part(w_OxI[a:b]) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
  y = jnp.concatenate(parts, axis=1)
  return y if len(x_TxI) == rows else y.sum(axis=0, keepdims=True)  # the other row's are zeros


def computed(x_TxI: jax.Array) -> jax.Array:
  """x, which XLA cannot compute anew in every step of a loop that reads it.

  A product by the identity is what it does not fuse. It is taken within a row, so that what is
  infinite or not a number in one row does not reach the others.
  """
  group = math.gcd(x_TxI.shape[1], _GROUP)
  return (x_TxI.reshape(-1, group) @ jnp.eye(group)).reshape(x_TxI.shape)


def _cores() -> int:
  """That this process may use."""
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
