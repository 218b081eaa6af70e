"""Files of benchmark data in a folder that a user names."""

from __future__ import annotations

import gzip
import json
import lzma
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sbdjax.errors import DataError

_OPENERS: Mapping[str, Callable[..., Any]] = {".xz": lzma.open, ".gz": gzip.open}
_FOLDERS = ("", "eval", "bench", "wikitext2")


class Files:
  """A folder of benchmark data: files lie in it, or in its folders `eval`, `bench`, `wikitext2`.

  Attributes:
    folder: as the user named it.
  """

  def __init__(self, folder: str | pathlib.Path):
    self.folder = pathlib.Path(folder).expanduser()

  def path(self, name: str) -> pathlib.Path:
    """Where the file `name` lies. Raises DataError if it is nowhere."""
    for folder in _FOLDERS:
      found = self.folder / folder / name
      if found.is_file():
        return found
    raise DataError(
      f"no file {name} in {self.folder} (nor in its folders {', '.join(_FOLDERS[1:])}): "
      "name the folder that has it with --data=DIR"
    )

  def text(self, name: str) -> str:
    """A text file, which may be compressed (.xz, .gz). Raises DataError."""
    path = self.path(name)
    opener = _OPENERS.get(path.suffix, open)
    try:
      with opener(path, "rt", encoding="utf-8") as file:
        return file.read()
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as e:
      raise DataError(f"cannot read {path}: {e}") from e

  def rows(self, name: str) -> Sequence[dict[str, Any]]:
    """JSON objects: one per line, or one list of them (.json). Raises DataError."""
    text = self.text(name)
    try:
      if ".jsonl" not in name:
        return json.loads(text)
      return [json.loads(line) for line in text.split("\n") if line]
    except ValueError as e:
      raise DataError(f"{self.path(name)} is not JSON: {e}") from e
