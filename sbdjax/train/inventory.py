"""Size and CRC-32 of every file of a folder, so that damage is found before the files are used."""

from __future__ import annotations

import json
import os
import pathlib
import zlib
from typing import TypedDict

from sbdjax import foreign
from sbdjax.errors import DamagedError

FILE = "inventory.json"


class _Entry(TypedDict):
  """What is recorded of a file."""

  bytes: int
  crc32: int


def write(folder: pathlib.Path) -> None:
  """Records the files in the subfolders of `folder`."""
  files = [p for p in sorted(folder.glob("*/**/*")) if p.is_file()]
  entries = {
    p.relative_to(folder).as_posix(): {"bytes": p.stat().st_size, "crc32": _crc32(p)} for p in files
  }
  (folder / FILE).write_text(json.dumps(entries, indent=1))


def verify(folder: pathlib.Path) -> None:
  """Raises DamagedError, naming the file and what was expected, unless all is as recorded."""
  incomplete = lambda problem: DamagedError(
    f"{problem}: {folder} was not written by this program, or its copy is incomplete; copy it again, "
    "or delete it to go back to the one before"
  )
  entries = foreign.read_json(folder / FILE, dict[str, _Entry], incomplete)
  for name, entry in entries.items():
    path = foreign.inside(folder, name, str(folder / FILE), DamagedError)
    size = path.stat().st_size if os.path.isfile(path) else None
    if size != entry["bytes"]:
      found = "is missing" if size is None else f"holds {size} bytes"
      problem = f"{found}, expected {entry['bytes']} bytes"
    elif _crc32(path) != entry["crc32"]:
      problem = f"does not have its CRC-32, expected {entry['crc32']}"
    else:
      continue
    raise DamagedError(
      f"{path} {problem}: the checkpoint is damaged; copy it again, or delete {folder} to go back "
      "to the one before"
    )


def _crc32(path: pathlib.Path) -> int:
  crc = 0
  with path.open("rb") as file:
    while chunk := file.read(1 << 24):
      crc = zlib.crc32(chunk, crc)
  return crc
