"""Locks of open files, which the system drops with the process that holds them.

On Windows, which has none of these, nobody is kept out.
"""

from __future__ import annotations

from typing import IO

try:
  import fcntl
except ImportError:  # Windows
  fcntl = None  # type: ignore[assignment]


def lock(file: IO[bytes], *, shared: bool = False, wait: bool = True) -> None:
  """Holds the lock of a file until it is closed.

  Args:
    shared: other processes may hold it, too, if they share it.
    wait: until it is free; else it is an error that somebody has it.

  Raises:
    OSError: somebody has it, with EACCES or EAGAIN; or the file system has no locks.
  """
  if fcntl is not None:
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    fcntl.lockf(file, how if wait else how | fcntl.LOCK_NB)
