"""Lines added to a file, each whole or not at all, whatever other processes add to it."""

from __future__ import annotations

import io
import os
import pathlib
from collections.abc import Sequence

from sbdjax.file_locks import lock

_PIECE = 1 << 16


def append_line(path: pathlib.Path, line: str) -> None:
  """`append_lines` of one."""
  append_lines(path, [line])


def append_lines(path: pathlib.Path, lines: Sequence[str]) -> None:
  """Adds `lines`, each with a line end, and waits for the disk.

  Half a line at the end, which a killed process has left, is dropped first. Lines that cannot be
  written whole (a full disk) are taken back.

  Raises:
    OSError: it cannot be written; it has the file's name.
  """
  try:
    with path.open("a+b", buffering=0) as file:
      lock(file)
      whole = _whole_lines(file)
      if whole < file.seek(0, os.SEEK_END):
        file.truncate(whole)
      try:
        rest = memoryview("".join(f"{line}\n" for line in lines).encode())
        while rest:
          rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
      except OSError:
        file.truncate(whole)
        raise
  except OSError as e:
    raise OSError(e.errno, e.strerror, str(path)) from e


def _whole_lines(file: io.FileIO) -> int:
  """Bytes up to the last line end."""
  end = file.seek(0, os.SEEK_END)
  while end:
    start = max(0, end - _PIECE)
    file.seek(start)
    at = file.read(end - start).rfind(b"\n")
    if at >= 0:
      return start + at + 1
    end = start
  return 0
