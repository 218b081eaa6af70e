"""How long a run will take, told once its first updates are timed."""

from __future__ import annotations

import time
from collections.abc import Callable

_TIMED = 10


class Pace:
  """Says after ten updates how long the others will take.

  The first is left out, in which the program is compiled. A run with fewer than eleven updates ahead
  says nothing.

  Args:
    start: updates done before.
    total: updates of the run.
    tell: is given one line.
    clock: seconds, monotonic.
  """

  def __init__(
    self,
    start: int,
    total: int,
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.perf_counter,
  ):
    self._first, self._last = start + 1, start + _TIMED
    self._total, self._tell, self._clock = total, tell, clock
    self._since = 0.0

  def update(self, step: int) -> None:
    """`step` updates are done."""
    if step == self._first:
      self._since = self._clock()
    elif step == self._last and step < self._total:
      each = (self._clock() - self._since) / (self._last - self._first)
      left = self._total - step
      self._tell(f"about {show(each * left)} for the other {left:,} updates ({each:.2g} s each)")


# From so many of the unit before on, the next is used.
_UNITS = (("s", 1, 90), ("min", 60, 90), ("h", 3600, 36))


def show(seconds: float) -> str:
  """`40 s`, `12 min`, `3.4 h`, `2.1 days`."""
  for unit, size, most in _UNITS:
    if seconds < size * most:
      return f"{seconds / size:.1f} {unit}" if unit == "h" else f"{seconds / size:.0f} {unit}"
  return f"{seconds / 86400:.1f} days"
