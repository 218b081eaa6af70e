"""Files that travel inside the package (`sbdjax/assets`; their origins are in its NOTICE)."""

import pathlib

from sbdjax import remote
from sbdjax.errors import DataError

_FOLDER = pathlib.Path(__file__).resolve().parent.parent / "assets"
PREFIX = "asset:"


def path(name: str) -> pathlib.Path:
  """Where the embedded file `name` lies.

  Raises:
    DataError: there is no such file.
  """
  found = _FOLDER / name
  if not found.is_file():
    names = ", ".join(sorted(p.name for p in _FOLDER.iterdir() if p.name != "NOTICE"))
    raise DataError(f"no embedded file {name!r}: the package has {names}")
  return found


def resolve(name: str) -> pathlib.Path:
  """A path as users write it: `asset:NAME` is an embedded file, `~` is the home folder.

  What lies on an object store (gs://, s3://) is copied to this machine once.
  """
  if remote.is_remote(name):
    return remote.local_copy(name)
  if name.startswith(PREFIX):
    return path(name.removeprefix(PREFIX))
  return pathlib.Path(name).expanduser()
