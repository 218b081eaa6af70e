"""Products of a few rows as sums, which read weights as fast as the product of one row does.

XLA has no product of a matrix and a few vectors for CPUs. It calls Eigen, which packs the weights
before it multiplies by them: that takes longer than reading them from memory. Here a product is one
loop over the weights with a sum for each row, which XLA shares among the cores, and LLVM vectorises
where it may add in any order: programs are compiled with `COMPILER_OPTIONS`, without which the same sums
take several times as long. `experiments/benchmarks/cases_prepare.py` measures them.
"""

from __future__ import annotations

import math

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
# More rows are more sums than registers; long rows leave no room for as many in the nearest cache.
_ROWS, _ROWS_OF_LONG, _LONG = 6, 5, 1024
# Sums at a time: those of few rows are taken for several outputs at once, which read the rows once.
_SUMS, _OUTPUTS = 12, 4
_GROUP = 16


def pays(rows: int, w_OxI: jax.Array) -> bool:
  """Whether sums are the faster product of so many rows."""
  most = _ROWS if w_OxI.shape[1] <= _LONG else _ROWS_OF_LONG
  # XLA has a fast product of a matrix and one vector, but not of bfloat16.
  fewest = 1 if w_OxI.dtype == jnp.bfloat16 else 2
  return w_OxI.size >= _LARGE and fewest <= rows <= most


def product(w_OxI: jax.Array, x_TxI: jax.Array) -> jax.Array:
  """`x @ w.T`, float32 [T, O], of [O, I] and [T, I] in any dtype of floats."""
  rows = max(2, len(x_TxI))  # a loop with a single sum is not vectorised
  x = computed(jnp.pad(x_TxI.astype(jnp.float32), ((0, rows - len(x_TxI)), (0, 0))))
  at_once = outputs_at_once(rows, len(w_OxI))
  # A loop over the first of `at_once` parts of the weights, which reads the others beside it.
  parts = jnp.split(w_OxI.astype(jnp.float32), at_once)
  terms = [part * row for part in parts for row in x]
  add = lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True))
  sums = jax.lax.reduce(terms, [np.float32(0)] * len(terms), add, (1,))
  y = jnp.stack(sums).reshape(at_once, rows, -1).swapaxes(0, 1).reshape(rows, -1)
  return y if len(x_TxI) == rows else y.sum(axis=0, keepdims=True)  # the other row's are zeros


def outputs_at_once(rows: int, outputs: int) -> int:
  """How many: a power of two that divides all outputs."""
  fit = (n for n in (_OUTPUTS, 2) if n * rows <= _SUMS and outputs % n == 0)
  return next(fit, 1)


def computed(x_TxI: jax.Array) -> jax.Array:
  """x, which XLA cannot compute anew in every step of a loop that reads it.

  A product by the identity is what it does not fuse. It is taken within a row, so that what is
  infinite or not a number in one row does not reach the others.
  """
  group = math.gcd(x_TxI.shape[1], _GROUP)
  return (x_TxI.reshape(-1, group) @ jnp.eye(group)).reshape(x_TxI.shape)
