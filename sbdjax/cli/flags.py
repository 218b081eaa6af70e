"""Settings given as flags alone (`--section.field=value`), without a config file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sbdjax.errors import UsageError
from sbdjax.settings import field_types, nearest, parse_value


def parse_fields(cls: type, texts: Mapping[str, str], where: str) -> dict[str, Any]:
  """{"field": "text"} read as the types of the dataclass `cls`.

  Raises:
    UsageError: a field that `cls` does not have (the nearest is named), or a value of another type.
  """
  fields = field_types(cls)
  for name in texts:
    if name not in fields:
      raise UsageError(
        f"unknown field {where}.{name}{nearest(name, fields)}: choose from {', '.join(fields)}"
      )
  return {name: parse_value(text, fields[name], f"{where}.{name}") for name, text in texts.items()}


def parse_ints(text: str, flag: str) -> tuple[int, ...]:
  """ "1,32" -> (1, 32), all at least 1. Raises UsageError for anything else."""
  try:
    values = tuple(int(part) for part in text.split(","))
  except ValueError:
    values = ()
  if not values or min(values) < 1:
    raise UsageError(f"{flag}={text}: give numbers from 1 on, separated by commas, like 1,32")
  return values


def at_least(value: int, least: int, flag: str) -> int:
  """`value`, or a UsageError where it is below `least`."""
  if value < least:
    raise UsageError(f"{flag}={value}: give {least} or more")
  return value


def parse_token_lists(text: str, flag: str) -> list[list[int]]:
  """ "[[1,2],[3]]" -> lists of ids. Raises UsageError for anything else."""
  try:
    lists = json.loads(text)
  except json.JSONDecodeError:
    lists = None
  if isinstance(lists, list) and all(isinstance(row, list) for row in lists):
    if all(type(token) is int for row in lists for token in row):
      return lists
  raise UsageError(f"{flag}={text}: give one list of token ids a prompt, like [[1,2],[3]]")
