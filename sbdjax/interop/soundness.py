"""Weights that are no numbers, counted once when a checkpoint is opened."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sbdjax.errors import CheckpointError

# Of half precision: the bits of the exponent, all of which are set in NaN and infinities.
_EXPONENT = {"bfloat16": 0x7F80, "float16": 0x7C00}
_SHOWN = 3


def check_finite(params: Any, where: str) -> None:
  """Raises CheckpointError where a tensor holds NaN or infinities, with the number of each.

  Args:
    params: tree of arrays.
    where: the checkpoint, for messages.
  """
  bad = {
    jax.tree_util.keystr(path, simple=True, separator="."): count
    for path, x in jax.tree_util.tree_leaves_with_path(params)
    if (count := count_not_finite(x))
  }
  if bad:
    shown = ", ".join(f"{name} ({count:,})" for name, count in [*bad.items()][:_SHOWN])
    more = f" and {len(bad) - _SHOWN} more tensors" if len(bad) > _SHOWN else ""
    raise CheckpointError(
      f"{where} holds weights that are NaN or infinite: {shown}{more}: it is damaged, or its training "
      "diverged"
    )


def count_not_finite(x: Any) -> int:
  """How many numbers of an array are NaN or infinite."""
  if not jnp.issubdtype(x.dtype, jnp.floating):
    return 0
  on_host = isinstance(x, np.ndarray) or _is_on_cpu(x)
  return _on_host(np.asarray(x)) if on_host else int(jnp.sum(~jnp.isfinite(x)))


def _is_on_cpu(x: jax.Array) -> bool:
  return x.is_fully_addressable and all(d.platform == "cpu" for d in x.devices())


def _on_host(x: np.ndarray) -> int:
  bits = _EXPONENT.get(x.dtype.name)
  if bits is not None:
    half = x.view(np.uint16)
    return int(np.count_nonzero((half & bits) == bits))
  with np.errstate(all="ignore"):
    # Several times faster than to look at each: a sum with one of them is none.
    if np.isfinite(np.sum(x)):
      return 0
  return int(x.size - np.count_nonzero(np.isfinite(x)))
