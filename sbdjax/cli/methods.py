"""Decoding methods: `methods` lists them with their settings, `methods NAME` explains one

NAME is a method, a reveal rule or any other part of a method, or module:Name for one of your own.
Shown are its docstring, its settings, where its source is, and the parts it can be given.
"""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from sbdjax.cli.common import Parser
from sbdjax.decode import flat_names, registry
from sbdjax.decode.decoding import MAX_TOKENS, Decoding
from sbdjax.decode.method import Method
from sbdjax.errors import UsageError
from sbdjax.settings import import_object, nearest

_WIDTH = 80


def settings(cls: type) -> str:
  """`block_size=16 rule=eb_entropy gamma=0.1`: flat names with their defaults, `...` where none."""
  fields = [(f.name, flat_names.default_of(f)) for f in dataclasses.fields(cls)]
  values: dict[str, Any] = {name: "..." for name, value in fields if value is dataclasses.MISSING}
  values = values or flat_names.flat_part(cls(), idle=True)
  return " ".join(f"{name}={value}" for name, value in values.items())


def _entries(kind: str) -> Iterator[str]:
  for name, cls in registry.REGISTRY[kind].items():
    shown = f"{name:<22}{settings(cls)}".rstrip()
    yield textwrap.fill(shown, _WIDTH, initial_indent="  ", subsequent_indent=" " * 24)


def overview() -> str:
  """Every method and every part with its own settings and defaults, as a table."""
  lines = ["methods (--decoder.name=) and their settings (--decoder.SETTING=):"]
  lines += _entries(registry.METHOD)
  for kind in registry.REGISTRY:
    if kind != registry.METHOD:
      lines += ["", f"{_flag(kind)} and what it adds:", *_entries(kind)]
  lines += ["", f"--decoder.{MAX_TOKENS}={Decoding.max_tokens} limits every method."]
  return "\n".join(lines)


def _flag(kind: str) -> str:
  """How a part of this kind is chosen."""
  if kind in registry.IMPLIED:
    return f"{kind}, chosen by --decoder.{registry.IMPLIED[kind].by}=,"
  return f"--decoder.{kind}="


def explain(name: str) -> str:
  """The docstring of a method or part, its settings, and where it is defined.

  Raises:
    UsageError: there is none of that name.
  """
  if ":" in name:
    found = [_outside(name)]
  else:
    found = [(kind, names[name]) for kind, names in registry.REGISTRY.items() if name in names]
  if not found:
    known = [n for names in registry.REGISTRY.values() for n in names]
    raise UsageError(
      f"no method or part is called {name!r}{nearest(name, known)}: `methods` lists them"
    )
  return "\n\n".join(_page(kind, name, cls) for kind, cls in found)


def _outside(name: str) -> tuple[str, type]:
  """Kind and class of `module:Name`."""
  cls = import_object(name, "methods")
  kind = getattr(cls, "kind", "") or registry.METHOD
  return kind, registry.find(kind if kind in registry.REGISTRY else registry.METHOD, name)


def _page(kind: str, name: str, cls: type) -> str:
  lines = [f"--decoder.{kind}={name}", "", inspect.getdoc(cls) or "", ""]
  lines += [f"settings: {settings(cls) or 'none'}", f"source:   {_place(cls)}"]
  module = inspect.getdoc(inspect.getmodule(cls))
  if issubclass(cls, Method) and module:
    lines += ["", module]
  for part in (f.name for f in dataclasses.fields(cls)):
    if part in registry.REGISTRY:
      lines += ["", f"{_flag(part)} and what it adds:", *_entries(part)]
  return "\n".join(lines)


def _place(cls: type) -> str:
  """`FILE:LINE` of the class."""
  return f"{inspect.getsourcefile(cls)}:{inspect.getsourcelines(cls)[1]}"


def main(argv: list[str]) -> int:
  """Runs the verb; returns the exit code."""
  parser = Parser(prog="methods", description=__doc__)
  parser.add_argument("name", nargs="?", help="method or part; without it: the table of all")
  args = parser.parse_args(argv)
  print(overview() if args.name is None else explain(args.name))
  return 0
