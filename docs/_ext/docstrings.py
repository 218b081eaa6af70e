"""The docstrings of this package as reStructuredText: indented examples are code, names are names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from sphinx.application import Sphinx

_SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields):$")
_CODE = re.compile(r"(Example|Examples|Metrics):$")
_QUOTED = re.compile(r"(`[^`]*`)")
# What reStructuredText would take for emphasis, a substitution or a reference.
_MARKS = re.compile(r"[*|]|_(?!\w)")


def _indent(line: str) -> int:
  return len(line) - len(line.lstrip())


def _plain(line: str) -> str:
  """A line whose marks outside of backticks mean nothing; a bullet stays one."""
  bullet = re.match(r" *\* ", line)
  start = bullet.end() if bullet else 0
  parts = _QUOTED.split(line[start:])
  parts[::2] = [_MARKS.sub(lambda found: "\\" + found.group(0), part) for part in parts[::2]]
  return line[:start] + "".join(parts)


def prepared(lines: list[str]) -> Iterator[str]:
  """Lines of a docstring for napoleon, with `::` before every indented part that is no section."""
  literal = section = bullet = False
  for i, line in enumerate(lines):
    before = lines[i - 1] if i else ""
    if line.strip() and _indent(line) == 0:
      literal, section = False, bool(_SECTION.match(line))
      bullet = line.startswith("* ")
      if _CODE.match(line):
        yield from (line.rstrip(":") + "::", "")
        literal = True
        continue
    elif line.strip() and not (literal or section or bullet):
      if not before.strip() or before.endswith(":"):
        literal = True
        yield from ("", "::", "")
    yield line if literal else _plain(line)


def _process(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]):
  lines[:] = list(prepared(lines))


def setup(app: Sphinx) -> dict[str, bool]:
  # Before napoleon, whose priority is 500.
  app.connect("autodoc-process-docstring", _process, priority=100)
  return {"parallel_read_safe": True, "parallel_write_safe": True}
