"""Size and CRC-32 of every file of a folder, so that damage is found before the files are used."""

from __future__ import annotations

import json
import pathlib
import zlib

from sbdjax.errors import CheckpointError

FILE = "inventory.json"


def write(folder: pathlib.Path) -> None:
  """Records the files in the subfolders of `folder`."""
  files = [p for p in sorted(folder.glob("*/**/*")) if p.is_file()]
  entries = {
    p.relative_to(folder).as_posix(): {"bytes": p.stat().st_size, "crc32": _crc32(p)} for p in files
  }
  (folder / FILE).write_text(json.dumps(entries, indent=1))


def verify(folder: pathlib.Path) -> None:
  """Raises CheckpointError, naming the file and what was expected, unless all is as recorded."""
  try:
    entries = json.loads((folder / FILE).read_text())
  except (OSError, ValueError) as e:
    raise CheckpointError(
      f"cannot read {folder / FILE}: {folder} was not written by this program, or its copy is "
      "incomplete; copy it again, or delete it to go back to the one before"
    ) from e
  for name, entry in entries.items():
    path = folder / name
    size = path.stat().st_size if path.is_file() else None
    if size != entry["bytes"]:
      found = "is missing" if size is None else f"holds {size} bytes"
      problem = f"{found}, expected {entry['bytes']} bytes"
    elif _crc32(path) != entry["crc32"]:
      problem = f"does not have its CRC-32, expected {entry['crc32']}"
    else:
      continue
    raise CheckpointError(
      f"{path} {problem}: the checkpoint is damaged; copy it again, or delete {folder} to go back "
      "to the one before"
    )


def _crc32(path: pathlib.Path) -> int:
  crc = 0
  with path.open("rb") as file:
    while chunk := file.read(1 << 24):
      crc = zlib.crc32(chunk, crc)
  return crc
