"""Decoding methods: `methods` lists them with their settings, `methods NAME` explains one

NAME is a method, a reveal rule, or any other part of a method, or module:Name for one of your own.
"""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from collections.abc import Iterator

from sbdjax.cli.common import Parser
from sbdjax.decode import registry
from sbdjax.decode.method import Method, Part
from sbdjax.errors import UsageError
from sbdjax.settings import nearest

_WIDTH = 96


def settings(obj: Method | Part) -> str:
  """`block_size=16 rule=eb_entropy gamma=0.1`: flat names with their values."""
  hidden = (registry.METHOD,)
  values = registry.flat(obj) if isinstance(obj, Method) else registry.flat_part(obj)
  return " ".join(f"{name}={value}" for name, value in values.items() if name not in hidden)


def first_line(cls: type) -> str:
  """The summary of a class."""
  return (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")


def _entries(kind: str) -> Iterator[str]:
  for name, cls in registry.REGISTRY[kind].items():
    shown = f"{name:<22}{settings(cls())}".rstrip()
    yield textwrap.fill(shown, _WIDTH, initial_indent="  ", subsequent_indent=" " * 24)


def overview() -> str:
  """Every method and every part with its own settings and defaults, as a table."""
  lines = ["methods (--decoder.name=) and their settings (--decoder.SETTING=):"]
  lines += _entries(registry.METHOD)
  for kind in registry.REGISTRY:
    if kind in registry.IMPLIED or kind == registry.METHOD:
      continue
    lines += ["", f"--decoder.{kind}= and what it adds:", *_entries(kind)]
  lines += [
    "",
    "--decoder.temperature=T above 0 draws tokens, and adds top_k=0 top_p=1.0.",
    "--decoder.max_tokens=200 limits every method.",
  ]
  return "\n".join(lines)


def explain(name: str) -> str:
  """The docstring of a method or part, its settings, and where it is defined.

  Raises:
    UsageError: there is none of that name.
  """
  found = [
    (kind, names[name]) for kind, names in registry.REGISTRY.items() if name in names
  ] or _outside(name)
  if not found:
    known = [n for names in registry.REGISTRY.values() for n in names]
    raise UsageError(
      f"no method or part is called {name!r}{nearest(name, known)}: `methods` lists them"
    )
  return "\n\n".join(_page(kind, name, cls) for kind, cls in found)


def _outside(name: str) -> list[tuple[str, type]]:
  if ":" not in name:
    return []
  for kind in registry.REGISTRY:
    try:
      return [(kind, registry.find(kind, name))]
    except UsageError as e:
      error = e
  raise error


def _page(kind: str, name: str, cls: type) -> str:
  flag = f"--decoder.{kind}={name}"
  lines = [flag, "", inspect.getdoc(cls) or "", ""]
  lines += [f"settings: {settings(cls()) or 'none'}", f"source:   {cls.__module__}"]
  module = inspect.getdoc(inspect.getmodule(cls))
  if issubclass(cls, Method) and module:
    lines += ["", module]
  parts = [f.name for f in dataclasses.fields(cls) if f.name in registry.REGISTRY]
  for part in parts:
    lines += ["", f"--decoder.{part}=", *_entries(part)]
  return "\n".join(lines)


def main(argv: list[str]) -> int:
  """Runs the verb; returns the exit code."""
  parser = Parser(prog="methods", description=__doc__)
  parser.add_argument("name", nargs="?", help="method or part; without it: the table of all")
  args = parser.parse_args(argv)
  print(overview() if args.name is None else explain(args.name))
  return 0
