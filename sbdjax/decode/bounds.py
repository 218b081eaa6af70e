"""How large the sizes of a method may be: they are the shapes of a program, and are checked before.

A block of a billion tokens would not be slow, it would end the process inside of the compiler.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from sbdjax.decode.method import Method, Part
from sbdjax.errors import UsageError

# Of a pool, a tree or a window that does not grow with the text.
LARGEST = 1 << 16
_INT32 = 2**31 - 1
# Windows of tokens: more than the context holds can never be filled.
_OF_CONTEXT = ("block_size",)


def check_sizes(method: Method, context: int, where: str = "decoder") -> None:
  """Checks every whole number of a method and its parts.

  Args:
    context: tokens that the model is meant for.
    where: what to call the settings in messages.

  Raises:
    UsageError: a block that is longer than the context, or another size beyond `LARGEST`.
  """
  total = 1
  for name, value, sizes_program in _numbers(method):
    if name in _OF_CONTEXT and value > context:
      raise UsageError(
        f"{where}.{name}={value} is more than the {context} tokens of the model's context: lower it"
      )
    most = LARGEST if sizes_program else _INT32
    if abs(value) > most:
      raise UsageError(f"{where}.{name}={value} is too large: give at most {most}")
    if sizes_program:
      total *= max(1, abs(value))
  if total > _INT32:
    raise UsageError(
      f"the sizes of {where} together make a program of {total:,} entries: lower "
      f"{' or '.join(f'{where}.{n}' for n, v, s in _numbers(method) if s and v > 1)}"
    )


def _numbers(part: Any) -> Iterator[tuple[str, int, bool]]:
  """(flat name, whole number, whether it is static) of a method and of its parts."""
  for field in dataclasses.fields(part):
    value = getattr(part, field.name)
    if isinstance(value, (Method, Part)):
      yield from _numbers(value)
    elif isinstance(value, int) and not isinstance(value, bool):
      yield field.name, value, bool(field.metadata.get("static"))
