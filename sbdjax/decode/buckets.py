"""Prompts grouped by what they need of a program: columns for the prompt, and tokens after it.

A bucket is one program of fixed sizes, so memory is bounded by the largest. Few buckets mean few
programs and few tails, the forwards at the end of each in which slots stand empty; fine ones mean less
padding. So what is padded to a power of two is one bucket, and one that fills the slots only a few
times joins a larger one where that at most doubles what its rows take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sbdjax.decode import sizes
from sbdjax.decode.requests import Request
from sbdjax.decode.stop_sets import MOST_SETS

# Limits up to so many tokens share a bucket, for methods to which unused room costs only memory.
_SHORT_LIMIT = 256
_SMALLEST = 16

# Buckets that fill the slots fewer times than this join larger ones. With limits drawn from 16..256,
# 4 times leave 4 % of the forwards of slots to nobody, 2 times 9 %.
_FILLINGS = 4


class Waiting(NamedTuple):
  """A prompt of a bucket.

  Attributes:
    place: among the prompts given.
    request: what was asked for.
    limit: its largest number of tokens.
  """

  place: int
  request: Request
  limit: int

  @property
  def id(self) -> object:
    """What is handed back with its result."""
    return self.place if self.request.id is None else self.request.id


class Bucket(NamedTuple):
  """Prompts that share a program.

  Attributes:
    waiting: them, in the order they are taken in: those that may last longest first, so that the last
      ones end together; of about as many as there are slots the shortest first, so that prompts that
      are run together are of one length. Results do not depend on it.
    longest: tokens of the longest prompt.
    limit: the largest limit.
  """

  waiting: list[Waiting]
  longest: int
  limit: int


def buckets(waiting: Sequence[Waiting], whole_canvas: bool, slots: int) -> list[Bucket]:
  """Groups prompts, the bucket that takes most memory first.

  Args:
    whole_canvas: of the method; padding then costs time in every forward, and is less.
    slots: rows decoded together.
  """
  groups: dict[tuple[int, int], list[Waiting]] = {}
  for one in waiting:
    groups.setdefault(_sizes(one, whole_canvas), []).append(one)
  merged = _merged(groups, _FILLINGS * slots)
  found = [part for group in merged for part in _by_stops(group)]
  return [_bucket(group, slots) for group in found][::-1]


def _sizes(one: Waiting, whole_canvas: bool) -> tuple[int, int]:
  """Columns and tokens that one prompt is counted as."""
  width, limit = len(one.request.tokens), one.limit
  if whole_canvas:
    quarters = lambda size: sizes.round_up(size, _SMALLEST, _SMALLEST)
    return quarters(width), quarters(limit)
  powers = lambda size, least: 1 << (max(size, least) - 1).bit_length()
  return powers(width, _SMALLEST), powers(limit, _SHORT_LIMIT)


def _merged(groups: dict[tuple[int, int], list[Waiting]], fewest: int) -> list[list[Waiting]]:
  """The groups, small ones joined to larger ones; the one with the most slots a row last."""
  order = sorted(groups, key=lambda size: (sum(size), size))
  found: list[list[Waiting]] = []
  carried: list[Waiting] = []
  size = (0, 0)
  for i, own in enumerate(order):
    size = (max(size[0], own[0]), max(size[1], own[1]))
    carried = carried + groups[own]
    later = order[i + 1] if i + 1 < len(order) else None
    joins = later is not None and len(carried) < fewest
    if joins and later is not None:
      both = max(size[0], later[0]) + max(size[1], later[1])
      joins = both <= 2 * sum(size)
    if not joins:
      found.append(carried)
      carried, size = [], (0, 0)
  return found


def _by_stops(group: list[Waiting]) -> list[list[Waiting]]:
  """Cut where more sets of stop strings are asked for than one table holds."""
  numbers: dict[object, int] = {}
  for one in group:
    numbers.setdefault(one.request.stop, len(numbers))
  parts: dict[int, list[Waiting]] = {}
  for one in group:
    parts.setdefault(numbers[one.request.stop] // MOST_SETS, []).append(one)
  return list(parts.values())


def _bucket(group: list[Waiting], slots: int) -> Bucket:
  longest_first = sorted(group, key=lambda one: (-one.limit, one.place))
  ordered = [
    one
    for first in range(0, len(group), slots)
    for one in sorted(longest_first[first : first + slots], key=_tokens)
  ]
  return Bucket(ordered, max(map(_tokens, group)), max(one.limit for one in group))


def _tokens(one: Waiting) -> int:
  """Tokens of the prompt."""
  return len(one.request.tokens)
