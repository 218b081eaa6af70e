"""JAX's persistent compilation cache for the verbs: what one command compiled, the next one reads.

It is in the user's cache folder, of at most `MAX_BYTES`, and holds small programs as well. Who sets
JAX_COMPILATION_CACHE_DIR says where it is instead, and by JAX's other settings what it holds;
JAX_ENABLE_COMPILATION_CACHE=0 turns it off. The library itself changes no setting of JAX.
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Mapping, MutableMapping

MAX_BYTES = 2 * 2**30

_FOLDER = "JAX_COMPILATION_CACHE_DIR"
# Even the smallest programs: a command runs dozens of them, and reading one takes a millisecond.
_SETTINGS = {
  "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
  "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
  "JAX_COMPILATION_CACHE_MAX_SIZE": str(MAX_BYTES),
}


def folder(environment: Mapping[str, str], platform: str) -> pathlib.Path:
  """Where the user's programs are kept on a `sys.platform`.

  Raises:
    RuntimeError: nobody knows the user's home.
  """
  if environment.get("XDG_CACHE_HOME"):
    base = pathlib.Path(environment["XDG_CACHE_HOME"])
  elif platform == "darwin":
    base = pathlib.Path.home() / "Library" / "Caches"
  elif platform == "win32" and environment.get("LOCALAPPDATA"):
    base = pathlib.Path(environment["LOCALAPPDATA"])
  else:
    base = pathlib.Path.home() / ".cache"
  return base / "sbdjax" / "jax"


def turn_on(environment: MutableMapping[str, str] = os.environ) -> None:
  """Says in `environment` where the cache is, before JAX is imported and reads that.

  Nothing happens where the user has chosen a folder or turned the cache off, or where the folder
  cannot be written: programs are compiled then. Nor once JAX is imported, whose settings are then
  those of another program.
  """
  off = environment.get("JAX_ENABLE_COMPILATION_CACHE", "1").lower() in ("0", "false", "f", "no")
  if _FOLDER in environment or off or "jax" in sys.modules:
    return
  try:
    path = folder(environment, sys.platform)
    path.mkdir(parents=True, exist_ok=True)
  except (OSError, RuntimeError):
    return
  if not os.access(path, os.W_OK | os.X_OK):
    return
  for name, value in {_FOLDER: str(path), **_SETTINGS}.items():
    environment.setdefault(name, value)
