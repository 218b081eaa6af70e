"""Markdown tables of recorded points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sbdjax.bootstrap import Interval
from sbdjax.evals import paired


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
  """A table; None is an empty cell."""
  cells = [["" if cell is None else str(cell) for cell in line] for line in (head, *rows)]
  first, *others = ["| " + " | ".join(line) + " |" for line in cells]
  return "\n".join([first, "|" + "---|" * len(head), *others])


def find(rows: Iterable[Mapping[str, Any]], label: str | None = None, **decoder: Any) -> Any:
  """The one point whose decoder has these settings.

  Args:
    label: of its model, too.

  Raises:
    LookupError: none, or several.
  """
  found = [
    row
    for row in rows
    if decoder.items() <= row["settings"]["decoder"].items()
    and label in (None, row["settings"]["sweep"]["label"])
  ]
  if len(found) != 1:
    raise LookupError(f"{len(found)} points of {label or 'any model'} have {decoder}: name one")
  return found[0]


def percent(found: Interval, digits: int = 1) -> str:
  """`+6.4 % [+3.7, +9.3]`."""
  value, *bounds = found.shown(digits, 100, "+").split(" ", 1)
  return " ".join([f"{value} %", *bounds])


def against(row: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
  """Judge NLL beside that of a reference: empty for itself, words for the same text."""
  if row is reference:
    return ""
  if paired.same_text(row, reference):
    return "the same text"
  return percent(paired.nll_difference(row, reference))
