"""The sizes of a bucket's program, and what its prompts are as arguments of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from sbdjax.decode import chunked, sizes, stop_sets
from sbdjax.decode.base import Limits
from sbdjax.decode.buckets import Bucket, Waiting
from sbdjax.decode.generate import pad_prompts
from sbdjax.decode.method import Method
from sbdjax.decode.slots import Arrivals, RowSettings
from sbdjax.decode.stops import Stops

# Columns of prompts that are run together, where they are not run in chunks: of long ones fewer are,
# which bounds the memory they take.
_COLUMNS = 8192
_MOST_EOS = 8

Automaton = Callable[[tuple[str, ...]], Stops | None]


@dataclasses.dataclass(frozen=True)
class Plan:
  """How a bucket is run.

  Attributes:
    bucket: its prompts.
    limits: of its program; what differs from row to row is in `RowSettings`.
    width: columns of prompts.
    rows: slots.
    together: R, prompts that are taken in together.
    in_chunks: long prompts are run a chunk at a time.
    eos_ids: of prompts that bring none.
    eos_width: E, EOS tokens of a row; 0: no prompt has any.
    set_of: stop strings -> their number in `limits.stops`; {} where there are none.
  """

  bucket: Bucket
  limits: Limits
  width: int
  rows: int
  together: int
  in_chunks: bool
  eos_ids: tuple[int, ...]
  eos_width: int
  set_of: Mapping[Hashable, int]

  def __str__(self) -> str:
    count, longest = len(self.bucket.waiting), self.bucket.longest
    return (
      f"{count} prompt{'s' * (count > 1)} of up to {longest:,} tokens and {self.bucket.limit:,} after "
      f"them, {self.rows} at a time"
    )

  def columns(self, taken: Sequence[Waiting]) -> int:
    """Columns that the forward of these prompts runs, padding and rows for nobody included."""
    longest = max(len(one.request.tokens) for one in taken)
    each = chunked.columns(longest, self.width) if self.in_chunks else self.width
    return self.together * each

  def arrivals(self, taken: Sequence[Waiting], slots: Sequence[int]) -> Arrivals:
    """Prompts that take these slots, at most R of them; the others of R take none."""
    first = self.bucket.waiting[0].request
    one = Waiting(0, dataclasses.replace(first, tokens=[0] * min(1, self.width)), 1)
    rows = [*taken, *[one] * (self.together - len(taken))]
    requests = [row.request for row in rows]
    padded, lengths = pad_prompts([r.tokens for r in requests], self.width, allow_empty=True)
    words = lambda values: np.array([v or 0 for v in values], np.uint32)
    number = [row.place if row.request.number is None else row.request.number for row in rows]
    return Arrivals(
      prompt_RxP=padded,
      prompt_len_R=lengths,
      settings=self._settings(rows),
      number_R=words(number),
      seed_R=words(r.seed for r in requests),
      own_R=np.array([r.seed is not None for r in requests]),
      slot_R=np.array([*slots, *[self.rows] * (self.together - len(slots))], np.int32),
    )

  def _settings(self, rows: Sequence[Waiting]) -> RowSettings:
    eos_RxE = set_R = None
    if self.eos_width:
      eos_RxE = np.full((len(rows), self.eos_width), -1, np.int32)
      for own_E, row in zip(eos_RxE, rows, strict=True):
        ids = eos_of(row, self.eos_ids)
        own_E[: len(ids)] = ids
    if self.set_of:
      set_R = np.array([self.set_of[row.request.stop] for row in rows], np.int32)
    return RowSettings(np.array([row.limit for row in rows], np.int32), eos_RxE, set_R)


def eos_of(row: Waiting, eos_ids: tuple[int, ...]) -> tuple[int, ...]:
  """The EOS tokens of a prompt, `eos_ids` where it brings none."""
  return eos_ids if row.request.eos_ids is None else tuple(row.request.eos_ids)


def plan(
  bucket: Bucket,
  method: Method,
  context: int,
  limits: Limits,
  automaton: Automaton,
  slots: int,
  refill: int,
) -> Plan:
  """The sizes of a bucket's program.

  Args:
    context: tokens the model is meant for.
    limits: of prompts that bring none of their own.
    automaton: of stop strings.
    slots: at most so many.
    refill: prompts taken in together at most.
  """
  whole = method.whole_canvas
  limit = max(bucket.limit, 1)  # buffers have room for one token at least
  width = sizes.width(bucket.longest, limit, context, whole)
  limit = limit if whole else sizes.limit(limit, width, context)
  rows = min(slots, sizes.rows(len(bucket.waiting)))
  most_eos = max(len(eos_of(row, limits.eos_ids)) for row in bucket.waiting)
  # A row that names none is one without an end, not one of a checkpoint without EOS tokens.
  most_eos = max(most_eos, bool(limits.eos_ids))
  strings = list(dict.fromkeys(row.request.stop for row in bucket.waiting))
  sets: list[Any] = [limits.stops if s is None else automaton(s) for s in strings]
  stops = stop_sets.stacked(sets) if any(s is not None for s in sets) else None
  in_chunks = method.cache_slots(width, limits) is not None
  together = refill if in_chunks else min(refill, _COLUMNS // max(width, 1))
  return Plan(
    bucket=bucket,
    limits=Limits(limit, stops=stops),
    width=width,
    rows=rows,
    together=max(1, min(together, rows)),
    in_chunks=in_chunks,
    eos_ids=tuple(limits.eos_ids),
    eos_width=sizes.round_up(most_eos, 1, _MOST_EOS),
    set_of={} if stops is None else {s: k for k, s in enumerate(strings)},
  )
