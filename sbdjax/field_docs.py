"""What a settings dataclass says of its fields: type, default, and the sentence of its docstring.

The docstring is the one place where a field is explained. Command-line help, the verb `configs` and
the documentation are made from what is read here.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from sbdjax.settings import describe, field_types, section_class

# `name: text` or `name, other: text`, as deep as the section's first entry.
_ENTRY = re.compile(r"(\w+(?:, \w+)*): ?(.*)")
_MODULE = re.compile(r"\b(?:\w+\.)+(?=\w)")
_WIDTH = 96


class FieldDoc(NamedTuple):
  """One field.

  Attributes:
    name: dotted, with its section where it has one: "data.seq_len".
    type: as messages name it.
    default: `dataclasses.MISSING` where it must be given.
    text: what the docstring says of it, on one line; empty for nothing.
  """

  name: str
  type: str
  default: Any
  text: str

  @property
  def required(self) -> bool:
    """Whether a config must set it."""
    return self.default is dataclasses.MISSING


def attributes(cls: type) -> dict[str, str]:
  """Field -> text, of the section `Attributes:` in the docstrings of `cls` and its bases."""
  found: dict[str, str] = {}
  for base in reversed(cls.__mro__):
    found |= _of_docstring(base.__dict__.get("__doc__") or "")
  return found


def _of_docstring(doc: str) -> dict[str, str]:
  found: dict[str, list[str]] = {}
  lines: list[str] = []
  for line in _section(inspect.cleandoc(doc)):
    entry = _ENTRY.fullmatch(line)
    if entry:
      lines = [entry[2]]
      found |= dict.fromkeys(entry[1].split(", "), lines)
    else:
      lines.append(line.strip())
  return {name: " ".join(part for part in parts if part) for name, parts in found.items()}


def _section(doc: str) -> list[str]:
  """The lines below `Attributes:`, without their common indent."""
  _, _, rest = f"\n{doc}\n".partition("\nAttributes:\n")
  kept = []
  for line in rest.split("\n"):
    if line and not line.startswith(" "):
      break
    kept.append(line)
  return textwrap.dedent("\n".join(kept)).strip("\n").split("\n") if kept else []


def summary(cls: type) -> str:
  """The first sentence of the docstring; of a dataclass without one, nothing."""
  doc = inspect.getdoc(cls) or ""
  generated = doc.startswith(f"{cls.__name__}(")  # by `dataclass`
  return "" if generated else " ".join(doc.split("\n\n")[0].split())


def of_class(cls: type, section: str = "") -> Iterator[FieldDoc]:
  """Every field of a dataclass; those of a dataclass it holds follow with a dotted name."""
  texts, hints = attributes(cls), field_types(cls)
  for field in dataclasses.fields(cls):
    if not field.init:
      continue
    name, hint = f"{section}.{field.name}".lstrip("."), hints[field.name]
    inner = section_class(hint)
    made = field.default_factory
    default = field.default if made is dataclasses.MISSING else made()
    shown = "section" if dataclasses.is_dataclass(default) else default
    kind = _MODULE.sub("", describe(hint))
    yield FieldDoc(name, kind, shown, texts.get(field.name, ""))
    if inner is not None:
      yield from of_class(inner, name)


def lines(
  sections: Mapping[str, type],
  given: Mapping[str, Any] | None = None,
  head: Callable[[str, type], str] = lambda name, cls: f"{name}: {summary(cls)}",
) -> Iterator[str]:
  """Sections with their fields, for a terminal.

  Args:
    sections: name -> dataclass.
    given: dotted field -> value, of fields that a config sets; shown instead of the default.
    head: the heading of a section.
  """
  given = given or {}
  for name, cls in sections.items():
    yield from ("", *_wrapped(head(name, cls), ""))
    for field in of_class(cls, name):
      yield from _field_lines(field, given)


def _field_lines(field: FieldDoc, given: Mapping[str, Any]) -> Iterator[str]:
  default = "must be set" if field.required else f"default {_value(field.default)}"
  if field.default == "section":
    yield f"  {field.name}: {field.type}"
  elif field.name in given:
    yield from _wrapped(f"* {field.name} = {_value(given[field.name])}  ({field.type}, {default})")
  else:
    yield from _wrapped(f"  {field.name}: {field.type}, {default}")
  yield from _wrapped(field.text, " " * 6)


def _value(value: Any) -> str:
  return repr(list(value) if isinstance(value, tuple) else value)


def _wrapped(text: str, indent: str | None = None) -> list[str]:
  start = "" if indent is None else indent
  return textwrap.wrap(
    text,
    _WIDTH,
    initial_indent=start,
    subsequent_indent=start or " " * 6,
    break_long_words=False,
    break_on_hyphens=False,
  )
