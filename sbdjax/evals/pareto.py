"""Which points of a sweep are worth a look: the Pareto front, and the fastest within a loss.

A point is on the front if no other is at least as good in both quality and speed and better in one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sbdjax.bootstrap import Interval
from sbdjax.evals import paired
from sbdjax.evals.paired import Row

# (point, reference) -> how many times as fast; None where nobody measured it.
Gain = Callable[[Row, Row], Interval | None]


class Best(NamedTuple):
  """The fastest point within a loss.

  Attributes:
    row: the point.
    reference: what it is compared with.
    loss: judge NLL above the reference's, as a share of it, with its paired bootstrap interval.
    gain: speed over the reference's.
  """

  row: Row
  reference: Row
  loss: Interval
  gain: Interval


def by_forwards(row: Row, reference: Row) -> Interval:
  """Tokens per forward over the reference's."""
  return paired.forwards_ratio(row, reference)


def by_clock(row: Row, reference: Row) -> Interval | None:
  """Tokens/s over the reference's, of one timing run; None where it was not timed."""
  return paired.speed_ratio(row, reference)


def loss_of(row: Row, reference: Row) -> Interval:
  """Judge NLL above the reference's, as a share; exactly 0 for the same texts."""
  if paired.same_text(row, reference):
    return Interval(0.0, 0.0, 0.0)
  return paired.nll_difference(row, reference)


def front(gains: Sequence[float | None], losses: Sequence[float]) -> list[bool]:
  """Of each point, whether it is on the front of high gains and low losses; None: it has no gain."""
  points = list(zip(gains, losses, strict=True))

  def beaten(gain: float, loss: float) -> bool:
    return any(
      g is not None and g >= gain and l <= loss and (g > gain or l < loss) for g, l in points
    )

  return [gain is not None and not beaten(gain, loss) for gain, loss in points]


def front_of(rows: Sequence[Row], gain: Gain) -> list[bool]:
  """`front` of the points of a sweep, each by its gain and loss against its own reference."""
  references = [paired.reference_of(row, rows) for row in rows]
  found = [gain(row, of) for row, of in zip(rows, references, strict=True)]
  losses = [loss_of(row, of).value for row, of in zip(rows, references, strict=True)]
  return front([None if x is None else x.value for x in found], losses)


def best_under(rows: Sequence[Row], share: float, gain: Gain) -> Best | None:
  """The point of the largest gain whose measured loss is at most `share`; None where none was timed.

  It is chosen by the measured loss; whether the bound of its interval is below `share` as well is
  for the reader to see. The reference itself has no loss, so there is one where anything was timed.
  """
  found = []
  for row in rows:
    reference = paired.reference_of(row, rows)
    fast, loss = gain(row, reference), loss_of(row, reference)
    if fast is not None and loss.value <= share:
      found.append(Best(row, reference, loss, fast))
  return max(found, key=lambda best: best.gain.value, default=None)
