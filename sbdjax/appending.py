"""Lines added to a file, each whole or not at all, whatever other processes add to it."""

from __future__ import annotations

import io
import os
import pathlib

from sbdjax.file_locks import lock

_PIECE = 1 << 16


def append_line(path: pathlib.Path, line: str) -> None:
  """Adds `line` and a line end, and waits for the disk.

  Half a line at the end, which a killed process has left, is dropped first. A line that cannot be
  written whole (a full disk) is taken back.

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
        rest = memoryview(line.encode() + b"\n")
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
