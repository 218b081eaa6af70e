"""Settings out of names and values: frozen dataclasses, and texts read as the types of their fields."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import importlib
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar, cast

from sbdjax.errors import UsageError

T = TypeVar("T")


class _OutOfRange(UsageError):
  """A number of the right type that nothing can be done with."""


class Section(Protocol):
  """A section of a config: a dict, or any mapping of fields to values."""

  def __iter__(self) -> Iterator[str]: ...

  def __getitem__(self, name: str, /) -> Any: ...

  def __contains__(self, name: object, /) -> bool: ...


_INT64 = 2**63
# Seeds have 32 bits; sizes and counts of steps have less.
LARGEST_INT = 2**32 - 1
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")


def nearest(name: str, known: Iterable[str]) -> str:
  """` (did you mean ...?)` for a misspelt name, or nothing where no known one is like it."""
  close = difflib.get_close_matches(name, list(known), n=1)
  return f" (did you mean {close[0]!r}?)" if close else ""


def import_object(name: str, where: str) -> Any:
  """What `module:Name` names: something from outside the package.

  Args:
    name: a module's dotted name and the name of something in it.
    where: the setting that names it, for messages.

  Raises:
    UsageError: no name of that form, a module that cannot be imported, or one without that name.
  """
  module_name, colon, attribute = name.partition(":")
  if not (module_name and colon and attribute):
    raise UsageError(f"{where}={name!r}: write module:Name, like my_lab.parts:MyPart")
  try:
    module = importlib.import_module(module_name)
  except ImportError as e:
    raise UsageError(
      f"{where}={name!r}: cannot import {module_name} ({e}): is its folder on PYTHONPATH?"
    ) from e
  if not hasattr(module, attribute):
    raise UsageError(
      f"{where}={name!r}: {module_name} has no {attribute}{nearest(attribute, vars(module))}"
    )
  return getattr(module, attribute)


def plain(config: Any) -> Any:
  """A config of nested sections as plain dicts, whatever kind of mapping they are."""
  if hasattr(config, "to_dict"):  # ml_collections
    config = config.to_dict()
  if not isinstance(config, Mapping):
    return config
  return {name: plain(value) for name, value in config.items()}


def describe(hint: Any) -> str:
  """A type as messages name it."""
  return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def parse_value(text: str, hint: Any, name: str) -> Any:
  """Reads a command-line value as the type `hint`.

  Raises:
    UsageError: it is not of that type.
  """
  members = typing.get_args(hint) if _is_union(hint) else (hint,)
  if type(None) in members and text.lower() == "none":
    return None
  for member in members:
    try:
      return check_value(_read(text, member), member, name)
    except _OutOfRange:
      raise
    # Of `literal_eval`: whatever a text makes Python's parser say.
    except (ValueError, SyntaxError, UsageError, TypeError, MemoryError, RecursionError):
      continue
  raise UsageError(f"{name}={text}: expected {describe(hint)}")


def _read(text: str, hint: Any) -> Any:
  if hint is str:
    return text
  if hint is bool:
    if text.lower() in _TRUE + _FALSE:
      return text.lower() in _TRUE
    raise ValueError(text)
  if hint in (int, float):
    return hint(text)
  return ast.literal_eval(text)


def _is_union(hint: Any) -> bool:
  return typing.get_origin(hint) in (typing.Union, types.UnionType)


def check_value(value: Any, hint: Any, name: str) -> Any:
  """`value` as the type `hint`: an int may stand for a float, a list for a tuple, a mapping for a
  dataclass.

  Raises:
    UsageError: anything else.
  """
  section = section_class(hint)
  if section is not None and _is_section(value):
    return to_dataclass(section, value, name)
  if _is_union(hint):
    for member in typing.get_args(hint):
      try:
        return check_value(value, member, name)
      except _OutOfRange:
        raise
      except UsageError:
        continue
  elif typing.get_origin(hint) is tuple and isinstance(value, list | tuple):
    kinds = typing.get_args(hint)
    if kinds[-1:] == (Ellipsis,):
      kinds = kinds[:1] * len(value)
    if len(kinds) == len(value):
      return tuple(check_value(v, kind, name) for v, kind in zip(value, kinds, strict=True))
  elif hint is float and isinstance(value, int) and not isinstance(value, bool):
    if abs(value) < _INT64:
      return float(value)
  elif isinstance(value, float) and not math.isfinite(value):
    raise _OutOfRange(f"{name}={value!r}: give a finite number")
  elif hint is int and isinstance(value, int) and abs(value) > LARGEST_INT:
    raise _OutOfRange(f"{name} is too large a number: give at most {LARGEST_INT}")
  elif hint is int and isinstance(value, bool):
    pass  # a bool is an int to Python, but never what was meant
  elif hint is Any or isinstance(value, typing.get_origin(hint) or hint):
    _check_items(value, name)
    return value
  raise UsageError(f"{name}={value!r}: expected {describe(hint)}")


def _check_items(value: Any, name: str) -> None:
  """Raises _OutOfRange for a number in a container whose type does not say what it holds."""
  items = value.values() if isinstance(value, Mapping) else value
  for item in items if isinstance(value, (Mapping, list, tuple)) else ():
    if isinstance(item, float) and not math.isfinite(item):
      raise _OutOfRange(f"{name}={value!r}: give finite numbers")
    _check_items(item, name)


def section_class(hint: Any) -> type | None:
  """The dataclass that a mapping given for a field of this type is read as, or None."""
  members = typing.get_args(hint) if _is_union(hint) else (hint,)
  found = [m for m in members if isinstance(m, type) and dataclasses.is_dataclass(m)]
  return found[0] if len(found) == 1 else None


def _is_section(value: Any) -> bool:
  return hasattr(value, "keys") and hasattr(value, "__getitem__")


def field_types(cls: type) -> dict[str, Any]:
  """Field -> type, of the fields of a dataclass that its constructor takes."""
  hints = typing.get_type_hints(cls)
  return {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init}


def class_for(cls: type[T], section: Section) -> type[T]:
  """The dataclass a section is read as: `cls`, or what its `class_for` chooses by the section."""
  choose = getattr(cls, "class_for", None)
  return cls if choose is None else choose(section)


def to_dataclass(cls: type[T], section: Section, where: str = "config") -> T:
  """Builds the frozen dataclass `cls` from a config section.

  Args:
    cls: a dataclass; its annotations are checked. Where it has a `class_for`, that chooses the
      class by the section: a derived one with fields of its own.
    section: field -> value; fields with defaults may be left out.
    where: the section's name, for messages.

  Raises:
    UsageError: an unknown or missing field, or a value of the wrong type.
  """
  if not _is_section(section):
    raise UsageError(f"{where}={section!r} is no section: give a mapping of its fields")
  cls = class_for(cls, section)
  hints, missing = field_types(cls), dataclasses.MISSING
  fields = {f.name: f for f in dataclasses.fields(cast(Any, cls)) if f.init}
  for key in section:
    if key not in fields:
      raise UsageError(
        f"unknown field {where}.{key}{nearest(key, fields)}: {cls.__name__} has {', '.join(fields)}"
      )
  for key, field in fields.items():
    if key not in section and field.default is missing and field.default_factory is missing:
      raise UsageError(f"{where}.{key} is not set: give it in the config file or as a flag")
  return cls(**{key: check_value(section[key], hints[key], f"{where}.{key}") for key in section})
