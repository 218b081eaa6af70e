"""Percentile bootstrap intervals (Efron 1979): how far a number may move with other texts.

The unit that is drawn is one text (or question, or turn), with replacement. Where two decoders are
compared, the same texts are drawn for both: what is hard for one is hard for the other, and what is
left is the difference between them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

RESAMPLES = 10_000
SHARE = 0.95
_NORMAL_95 = 1.96  # standard errors on either side
# Drawn numbers held at a time.
_CHUNK = 4_000_000
# Most counts kept for further intervals over as many texts: those of 1,200 texts, 100 MB, twice.
_KEPT = 12_000_000

# Columns [..., N], one after the other -> [...].
Statistic = Callable[..., Any]


class Interval(NamedTuple):
  """A number and where 95 % of the resamples put it.

  Attributes:
    value: of all texts.
    low, high: bounds; None where nothing is known of single texts.
  """

  value: float
  low: float | None = None
  high: float | None = None

  def shown(self, digits: int = 2, scale: float = 1.0, sign: str = "", unit: str = "") -> str:
    """`x [lo, hi]`, with commas between thousands; the value alone without bounds.

    Args:
      digits: after the point.
      scale: of all three, as 100 for per cent.
      sign: of the value and the bounds, "+" to show it always.
      unit: after the value, as " %".
    """
    value, *bounds = (
      None if x is None else f"{scale * x:{sign},.{digits}f}" for x in (self.value, *self[1:])
    )
    shown = f"{value}{unit}"
    return shown if None in bounds else f"{shown} [{', '.join(map(str, bounds))}]"


def normal(value: float, stderr: float | None) -> Interval:
  """The normal 95 % interval of a standard error, where nothing is kept of single texts.

  Args:
    stderr: None: nothing is known, and there are no bounds.
  """
  if stderr is None:
    return Interval(value)
  return Interval(value, value - _NORMAL_95 * stderr, value + _NORMAL_95 * stderr)


def spread(values: Sequence[float]) -> Interval:
  """The mean of a few trainings, with the least and the most of them in place of bounds; of one, the value alone."""
  found = sum(values) / len(values)
  return Interval(found, min(values), max(values)) if len(values) > 1 else Interval(found)


def mean(values: np.ndarray) -> np.ndarray:
  """Of the last axis."""
  return np.mean(values, axis=-1)


def median(values: np.ndarray) -> np.ndarray:
  """Of the last axis."""
  return np.median(values, axis=-1)


def interval(
  values: Sequence[float] | Sequence[Sequence[float]] | np.ndarray,
  statistic: Statistic = mean,
  resamples: int = RESAMPLES,
  seed: int = 0,
  share: float = SHARE,
) -> Interval:
  """The statistic of all texts with its percentile interval.

  Args:
    values: a number for each text [N], or several columns of them [C, N], which are drawn together.
    statistic: called with the columns, each [..., N]; returns [...].
    resamples: how often N texts are drawn.
    seed: of the draws; the same for the same N, so that every comparison sees the same resamples.
    share: of the resamples between the bounds.

  Raises:
    ValueError: no texts.
  """
  columns_CxN = np.atleast_2d(np.asarray(values, float))
  count = columns_CxN.shape[1]
  if not count:
    raise ValueError("there is nothing to draw from")
  found_R = np.concatenate(
    [statistic(*columns_CxN[:, index_RxN]) for index_RxN in _draws(count, resamples, seed)]
  )
  low, high = _bounds(found_R, share)
  return Interval(float(statistic(*columns_CxN)), float(low), float(high))


def _bounds(found_R: np.ndarray, share: float) -> np.ndarray:
  """The two ends of what `share` of the last axis lie between, [2, ...]."""
  return np.quantile(found_R, [(1 - share) / 2, (1 + share) / 2], axis=-1)


def _draws(count: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
  """Indices [some, count], of `resamples` rows in all."""
  rng, rows = np.random.default_rng(seed), max(1, _CHUNK // count)
  for first in range(0, resamples, rows):
    yield rng.integers(count, size=(min(rows, resamples - first), count))


def drawn_sums(columns_CxN: np.ndarray, resamples: int, seed: int) -> np.ndarray:
  """[C, resamples]: the sums of each column [C, N] over the texts drawn, which `seed` and N decide."""
  count = columns_CxN.shape[1]
  few = count * resamples <= _KEPT
  all_times = (_few_times if few else _times)(count, resamples, seed)
  return np.concatenate([columns_CxN @ times_RxN.T for times_RxN in all_times], axis=-1)


def _times(count: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
  """How often each text was drawn, [some, count]."""
  for index_RxN in _draws(count, resamples, seed):
    rows = len(index_RxN)
    flat = (index_RxN + count * np.arange(rows)[:, None]).ravel()
    yield np.bincount(flat, minlength=rows * count).reshape(rows, count).astype(float)


@functools.lru_cache(maxsize=2)  # tables ask for hundreds of intervals over the same texts
def _few_times(count: int, resamples: int, seed: int) -> list[np.ndarray]:
  return list(_times(count, resamples, seed))


def of_sums(
  columns: Sequence[Sequence[float]] | np.ndarray,
  statistic: Statistic,
  resamples: int = RESAMPLES,
  seed: int = 0,
  share: float = SHARE,
) -> Interval:
  """`interval` of a statistic of the columns' sums, which it is called with; the same draws."""
  columns_CxN = np.asarray(columns, float)
  if not columns_CxN.shape[1]:
    raise ValueError("there is nothing to draw from")
  low, high = _bounds(statistic(*drawn_sums(columns_CxN, resamples, seed)), share)
  return Interval(float(statistic(*columns_CxN.sum(axis=1))), float(low), float(high))


def ratio_of_sums(over: Sequence[float], under: Sequence[float], **how: Any) -> Interval:
  """sum(over) / sum(under), as tokens per forward; a number for each text in both.

  Args:
    how: `resamples`, `seed` and `share` of `interval`.
  """
  (found,) = ratios_of_sums([(over, under)], **how)
  return found


def ratios_of_sums(
  pairs: Sequence[tuple[Sequence[float], Sequence[float]]],
  resamples: int = RESAMPLES,
  seed: int = 0,
  share: float = SHARE,
) -> list[Interval]:
  """`ratio_of_sums` of many pairs: as one by one, in a small part of the time.

  Pairs of as many texts share their draws, and equal pairs are looked at once. A bound is not finite
  where the sum below is 0 in a resample.

  Args:
    pairs: (over, under), a number for each text in both.
    resamples, seed, share: as of `interval`.

  Raises:
    ValueError: a pair without texts, or of different lengths.
  """
  keys = [(tuple(over), tuple(under)) for over, under in pairs]
  by_count: dict[int, list[tuple[tuple[float, ...], tuple[float, ...]]]] = {}
  for over, under in dict.fromkeys(keys):
    if not under or len(over) != len(under):
      raise ValueError(f"there is nothing to draw from: {len(over)} numbers over {len(under)}")
    by_count.setdefault(len(under), []).append((over, under))
  found: dict[Any, Interval] = {}
  most = max(1, _CHUNK // resamples)
  for same in by_count.values():
    for first in range(0, len(same), most):
      some = same[first : first + most]
      columns_CxN = np.array([over for over, _ in some] + [under for _, under in some], float)
      sums_CxR = drawn_sums(columns_CxN, resamples, seed)
      with np.errstate(divide="ignore", invalid="ignore"):
        values = _halves_ratio(columns_CxN.sum(axis=-1))
        low, high = _bounds(_halves_ratio(sums_CxR), share)
      found |= {
        key: Interval(*map(float, ends)) for key, *ends in zip(some, values, low, high, strict=True)
      }
  return [found[key] for key in keys]


def _halves_ratio(values_Cx: np.ndarray) -> np.ndarray:
  """The first half of the rows over the second."""
  half = len(values_Cx) // 2
  return values_Cx[:half] / values_Cx[half:]


def paired_ratio(
  over: Sequence[float],
  under: Sequence[float],
  reference_over: Sequence[float],
  reference_under: Sequence[float],
  **how: Any,
) -> Interval:
  """A ratio of sums over that of a reference on the same texts, as tokens/s over those of AR.

  The same texts are drawn for both.
  """
  columns = [over, under, reference_over, reference_under]
  return of_sums(columns, lambda a, b, c, d: (a / b) / (c / d), **how)


def relative_difference(
  over: Sequence[float],
  under: Sequence[float],
  reference_over: Sequence[float],
  reference_under: Sequence[float],
  **how: Any,
) -> Interval:
  """`paired_ratio` - 1: 0.05 is 5 % above the reference."""
  found = paired_ratio(over, under, reference_over, reference_under, **how)
  return Interval(*(x - 1 for x in found if x is not None))
