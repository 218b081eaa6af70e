"""Work that several processes share without talking to each other: number i belongs to i mod n.

Nothing of JAX is started for it. A process learns which one it is from a flag (`--shard=1/4`) or
from the variables that `python -m sbdjax launch` sets.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TypeVar

from sbdjax.errors import UsageError

T = TypeVar("T")
# Those that `jax.distributed` of other programs reads as well.
COUNT, INDEX = "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


@dataclasses.dataclass(frozen=True)
class Share:
  """Part `index` of `count` parts; the default is the whole."""

  index: int = 0
  count: int = 1

  def has(self, number: int) -> bool:
    """Whether the thing of this number (0 first) is in this part."""
    return number % self.count == self.index

  def mine(self, items: Sequence[T]) -> list[T]:
    """Items index, index + count, index + 2 count, ..."""
    return list(items[self.index :: self.count])

  @property
  def name(self) -> str:
    """`1/4`; empty where there is one part only."""
    return f"{self.index}/{self.count}" if self.count > 1 else ""


WHOLE = Share()


def parse(text: str, flag: str = "--shard") -> Share:
  """The share of "i/n", 0 <= i < n. Raises UsageError for anything else."""
  try:
    index, count = (int(x) for x in text.split("/"))
  except ValueError:
    index, count = 0, 0
  if not 0 <= index < count:
    raise UsageError(f"{flag}={text}: write I/N with 0 <= I < N")
  return Share(index, count)


def of_process(environment: Mapping[str, str] = os.environ) -> Share:
  """What JAX_PROCESS_ID and JAX_NUM_PROCESSES say of this process; the whole without them.

  Raises:
    UsageError: they are no share, or one of them is missing.
  """
  given = [environment[name] for name in (INDEX, COUNT) if name in environment]
  if not given:
    return WHOLE
  if len(given) == 1:
    raise UsageError(f"set both {INDEX} and {COUNT}, or neither")
  return parse("/".join(given), f"{INDEX}/{COUNT}")
