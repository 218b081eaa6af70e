"""List the configs that ship as presets, or show one: configs [NAME[:VARIANT]]

`--config=preset:NAME` opens a preset in every verb that takes a config, `preset:NAME:VARIANT`
another variant than the first; a variant in CAPITALS stands for a value of your own. `configs NAME`
prints what the preset says of itself, the fields it sets, and then every field that a config of its
kind may set, with type, default and what it is for; `*` marks those that the preset sets.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from sbdjax import presets
from sbdjax.cli.common import Parser, open_config
from sbdjax.cli.config_file import ConfigFile


def _doc(preset: ConfigFile) -> str:
  return inspect.getdoc(preset.module) or ""


def listing() -> str:
  """Every preset: its name and variants, and below them the first line of its docstring."""
  lines = []
  for name in presets.names():
    preset = open_config(f"preset:{name}")
    variants = " | ".join(getattr(preset.module, "VARIANTS", ()))
    lines += [f"{name}  [{variants}]" if variants else name, "    " + _doc(preset).split("\n")[0]]
  return "\n".join(lines)


def shown(flag: str) -> str:
  """One preset: its docstring, what its functions give for the variant, and every field there is.

  Args:
    flag: `preset:NAME` or `preset:NAME:VARIANT`.

  Raises:
    UsageError: no such preset or variant.
  """
  from sbdjax.cli import fields  # here: it starts JAX, which the list does not need

  preset = open_config(flag)
  config = preset.call("get_config")
  given = dict(_fields(config))
  lines = [_doc(preset), "", f"--config={flag} sets", ""]
  lines += [f"  {name} = {value!r}" for name, value in given.items()]
  for function, what in (("get_sweep", "points of the sweep"), ("get_rounds", "rounds")):
    entries = preset.call(function) if preset.has(function) else None
    if entries:
      lines += ["", f"{len(entries)} {what}", "", *(f"  {entry}" for entry in entries)]
  lines += ["", "every field", fields.of_config(config, given, preset.has("get_sweep"))]
  return "\n".join(lines)


def _fields(config: ConfigDict, section: str = "") -> Iterator[tuple[str, Any]]:
  for key, value in config.items():
    if isinstance(value, ConfigDict):
      yield from _fields(value, f"{section}{key}.")
    else:
      yield section + key, value


def main(argv: list[str]) -> int:
  """Runs the verb; returns the exit code."""
  parser = Parser(prog="configs", description=__doc__)
  parser.add_argument("name", nargs="?", help="of a preset, alone or as NAME:VARIANT")
  name = parser.parse_args(argv).name
  print(listing() if name is None else shown(f"preset:{name.removeprefix('preset:')}"))
  return 0
