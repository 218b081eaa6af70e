"""Keeps the C allocator from handing memory back to the system between steps.

XLA on CPU allocates one large buffer for every execution. By default glibc maps and unmaps such
buffers, so each step begins with page faults over all of it. With these settings freed memory
stays in the process and is used again.
"""

from __future__ import annotations

import ctypes
import ctypes.util

# Parameters of mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> bool:
  """Applies the settings where the C library is glibc; says whether it did."""
  name = ctypes.util.find_library("c")
  try:
    mallopt = ctypes.CDLL(name).mallopt
  except (AttributeError, OSError, TypeError):
    return False
  return all(
    mallopt(*setting)
    for setting in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_ARENA_MAX, 1))
  )
