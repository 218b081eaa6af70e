"""Small files that are there whole or not at all."""

from __future__ import annotations

import os
import pathlib

from sbdjax import remote


def replace_text(path: pathlib.Path, text: str) -> None:
  """Replaces `path` by `text`; an OSError names the file and leaves the old one."""
  if remote.is_remote(path):
    path.write_text(text)  # an object is replaced whole
    return
  temporary = path.with_name(path.name + ".tmp")
  try:
    temporary.write_text(text)
    os.replace(temporary, path)
  except OSError as e:
    temporary.unlink(missing_ok=True)
    raise OSError(e.errno, e.strerror, str(path)) from e
