"""Work that is done shard by shard in a folder, and gone on with after an interruption."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from sbdjax.data.files import write_atomically
from sbdjax.errors import DataError, UsageError

SETTINGS = "settings.json"


def read_settings(folder: pathlib.Path, what: str, verb: str) -> dict[str, Any]:
  """What made a folder. Raises DataError: nothing there that can be read.

  Args:
    what: is in the folder, for messages.
    verb: makes it, for messages.
  """
  try:
    return json.loads((folder / SETTINGS).read_text())
  except (OSError, ValueError) as error:
    raise DataError(
      f"{folder} holds no {what} (cannot read {SETTINGS}): make them with python -m sbdjax {verb}"
    ) from error


def begin(
  folder: pathlib.Path, settings: Mapping[str, Any], what: str, verb: str
) -> dict[str, Any]:
  """Makes a folder for work with these settings, or finds it begun with the same.

  Returns:
    The settings as JSON has them.

  Raises:
    UsageError: it was begun with other settings.
    DataError: it cannot be written.
  """
  now: dict[str, Any] = json.loads(json.dumps(dict(settings)))
  path = folder / SETTINGS
  if not path.exists():
    text = json.dumps(now, indent=2, sort_keys=True) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))
    return now
  before = read_settings(folder, what, verb)
  for name in sorted(before.keys() | now.keys()):
    if before.get(name) != now.get(name):
      raise UsageError(
        f"{folder} holds {what} of {name}={before.get(name)!r}, now it is "
        f"{now.get(name)!r}: choose another --workdir"
      )
  return now
