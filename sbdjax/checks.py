"""Ranks, shapes and dtypes of arguments, checked while a program is traced: compiled, nothing is left.

Names say what is expected: `tokens_BxT` is an array [B, T]. An argument that is not so raises a
UsageError with one line that names it:

  positions_BxT: expected an integer array [B=2, T=9], got int32[2, 8]
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from sbdjax.errors import UsageError

_KINDS: dict[str, tuple[str, Any]] = {
  "integer": ("an integer array", jnp.integer),
  "float": ("a floating-point array", jnp.floating),
  "boolean": ("a boolean array", jnp.bool_),
  "key": ("an array of PRNG keys", None),
}
_SUFFIX = re.compile(r"_((?:\.\.\.x)?[A-Z][a-z]?(?:x[A-Z][a-z]?)*)$")


def array(
  name: str,
  value: Any,
  kind: str,
  sizes: dict[str, int] | None = None,
  *,
  axes: str | None = None,
  or_one: str = "",
) -> None:
  """Checks one argument.

  Args:
    name: of the argument.
    value: what was given for it.
    kind: "integer", "float", "boolean" or "key".
    sizes: axis -> size, of axes whose size is known; this argument's are added. Arguments that
      share axes are checked with one dict.
    axes: names of the axes, like "BxT" or "...xD" (any axes before); None: the suffix of `name`.
    or_one: axes that may have size 1 instead, for arguments that are broadcast.

  Raises:
    UsageError: it is no array, or one of another rank, shape or dtype.
  """
  sizes = {} if sizes is None else sizes
  letters = (axes or _axes_of(name)).split("x")
  if not (_is_array(value) and _fits(value, kind, letters, sizes, or_one)):
    shown = ", ".join(f"{x}={sizes[x]}" if x in sizes else x for x in letters)
    raise UsageError(f"{name}: expected {_KINDS[kind][0]} [{shown}], got {_described(value)}")
  sizes |= {x: size for x, size in _sizes(value, kind, letters) if x not in or_one}


def fields(rule: Any, kind: str = "integer") -> None:
  """Checks the fields of a dataclass whose names say their axes; None is allowed.

  Raises:
    UsageError: see `array`; the message has the name of the class too.
  """
  sizes: dict[str, int] = {}
  for field in dataclasses.fields(rule):
    value = getattr(rule, field.name)
    if value is not None and _SUFFIX.search(field.name):
      array(f"{type(rule).__name__}.{field.name}", value, kind, sizes, axes=_axes_of(field.name))


def _axes_of(name: str) -> str:
  found = _SUFFIX.search(name)
  if found is None:
    raise ValueError(f"{name} has no suffix that names its axes")
  return found.group(1)


def _is_array(value: Any) -> bool:
  return hasattr(value, "shape") and hasattr(value, "dtype")


def _shape(value: Any, kind: str) -> tuple[int, ...]:
  """The shape of an array; a key made by `jax.random.PRNGKey` is two numbers, but one key."""
  raw = kind == "key" and not jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
  return value.shape[:-1] if raw else value.shape


def _sizes(value: Any, kind: str, letters: list[str]) -> list[tuple[str, int]]:
  """(axis, size) of the named axes of an array that has as many."""
  named = [letter for letter in letters if letter != "..."]
  shape = _shape(value, kind)
  return list(zip(named, shape[len(shape) - len(named) :], strict=True))


def _fits(value: Any, kind: str, letters: list[str], sizes: Mapping[str, int], or_one: str) -> bool:
  dtype = _KINDS[kind][1]
  shape = _shape(value, kind)
  named = len(letters) - ("..." in letters)
  if len(shape) < named or (len(shape) > named and "..." not in letters):
    return False
  if dtype is not None and not jnp.issubdtype(value.dtype, dtype):
    return False
  found: dict[str, int] = {}  # an axis named twice has one size
  return all(
    (size == sizes.get(x, size) or (size == 1 and x in or_one))
    and found.setdefault(x, size) == size
    for x, size in _sizes(value, kind, letters)
  )


def _described(value: Any) -> str:
  if not _is_array(value):
    return type(value).__name__
  return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
