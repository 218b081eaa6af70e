"""Tables of points: the same cells as Markdown and as LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from sbdjax.report import rows
from sbdjax.report.measures import MEASURES, Measure, Value
from sbdjax.report.rows import Point

_DIGITS = 4  # significant, of numbers
# Measures that a table has though they are no quality.
_COSTS = ("tpf", "tokens_per_second", "speed_ratio", "seconds")


class Table(NamedTuple):
  """A heading, the columns' heads, and the cells of each line."""

  title: str
  heads: list[str]
  lines: list[list[str]]


def shown(value: Value | None) -> str:
  """`1.67 [1.63, 1.71]`; empty for nothing."""
  if value is None:
    return ""
  if value.low is None or value.high is None:
    return _number(value.value)
  return f"{_number(value.value)} [{_number(value.low)}, {_number(value.high)}]"


def _number(value: float) -> str:
  return f"{value:,.0f}" if abs(value) >= 10 ** (_DIGITS - 1) else f"{value:.{_DIGITS}g}"


def head(measure: Measure) -> str:
  """Label with unit."""
  return f"{measure.label} ({measure.unit})" if measure.unit else measure.label


def of_points(points: Sequence[Point]) -> list[Table]:
  """A table a set: series, setting, and every measure that a point of the set has."""
  sets: dict[str, list[Point]] = {}
  for point in points:
    sets.setdefault(point.of, []).append(point)
  return [_table(name, group) for name, group in sets.items()]


def _table(title: str, points: Sequence[Point]) -> Table:
  has = {key for p in points for key in p.values}
  kept = [m for m in MEASURES if m.key in has and (m.quality or m.key in _COSTS)]
  heads = ["series", "setting", *map(head, kept), "texts"]
  lines = [
    [
      name,
      rows.annotation(p.decoder),
      *(shown(p.values.get(m.key)) for m in kept),
      "" if p.prompts is None else f"{p.prompts:.0f}",
    ]
    for p, name in zip(points, rows.series(points), strict=True)
  ]
  used = [i for i in range(len(heads)) if i == 0 or any(line[i] for line in lines)]
  return Table(title, [heads[i] for i in used], [[line[i] for i in used] for line in lines])


def markdown(tables: Sequence[Table]) -> str:
  """All tables, each under its heading."""
  return "\n\n".join(map(_markdown, tables)) + "\n"


def _markdown(table: Table) -> str:
  line = lambda cells: "| " + " | ".join(map(_markdown_text, cells)) + " |"
  rule = "|" + "---|" * len(table.heads)
  return "\n".join(
    [f"## {_markdown_text(table.title)}", "", line(table.heads), rule, *map(line, table.lines)]
  )


def _markdown_text(text: str) -> str:
  """Text in a cell: what Markdown and HTML read is escaped."""
  escaped = re.sub(r"([\\`*<>|])", r"\\\1", " ".join(text.split()))
  return escaped.replace("](", "]\\(")  # no links


def latex(tables: Sequence[Table]) -> str:
  """All tables, to be \\input; they need the package booktabs."""
  return "\n\n".join(map(_latex, tables)) + "\n"


def _latex(table: Table) -> str:
  line = lambda cells: " & ".join(map(_latex_text, cells)) + r" \\"
  columns = "l" * min(2, len(table.heads)) + "r" * (len(table.heads) - 2)
  return "\n".join(
    [
      r"\begin{table}",
      rf"\caption{{{_latex_text(table.title)}}}",
      rf"\begin{{tabular}}{{{columns}}}",
      r"\toprule",
      line(table.heads),
      r"\midrule",
      *map(line, table.lines),
      r"\bottomrule",
      r"\end{tabular}",
      r"\end{table}",
    ]
  )


_LATEX = {
  "\\": r"\textbackslash{}",
  "~": r"\textasciitilde{}",
  "^": r"\textasciicircum{}",
  "<": r"\textless{}",
  ">": r"\textgreater{}",
  "|": r"\textbar{}",
  '"': r"\textquotedbl{}",
  **{c: f"\\{c}" for c in "&%$#_{}"},
}


def _latex_text(text: str) -> str:
  return "".join(_LATEX.get(c, c) for c in " ".join(text.split()))
