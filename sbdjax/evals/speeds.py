"""How fast the points of a sweep are: all of them in turns on the same prompts, in one run.

A machine is busier in one minute than in the next, so tokens/s of two runs say little about two
decoders. Here every point decodes a batch before the next batch is begun, in an order that rotates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sbdjax.bench.timing import Pass


class Batch(NamedTuple):
  """Prompts that are decoded together.

  Attributes:
    prompts: token ids.
    numbers: the place of each among all prompts, which chooses its noise.
  """

  prompts: Sequence[Sequence[int]]
  numbers: Sequence[int]


def batch_of(prompts: Sequence[Sequence[int]], first: int = 0) -> Batch:
  """Prompts whose places are one after another, from `first` on."""
  return Batch(prompts, range(first, first + len(prompts)))


def batches(prompts: Sequence[Sequence[int]], size: int) -> list[Batch]:
  """Batches of one size; the prompts at the end that fill none are left out."""
  size = min(size, len(prompts))
  firsts = range(0, len(prompts) - size + 1, size)
  return [batch_of(prompts[first : first + size], first) for first in firsts]


def in_turns(
  runs: Sequence[Callable[[Batch], Pass]],
  each: Sequence[Batch],
  turns: int,
  telling: Callable[[str], None] = lambda text: None,
  warm: Sequence[Batch] = (),
) -> list[dict[str, Any]]:
  """Times `runs`, after executions that are not timed.

  Args:
    runs: decode a batch.
    each: batches, all of which every run decodes in every turn.
    turns: how often.
    telling: is told, in a line, what is timed.
    warm: what every run decodes before, a batch for each program that it has; none: the first of `each`.

  Returns:
    Of each run: `tokens` of each batch, and the `seconds` of each turn, batch by batch: decoding,
    after the prompts' forwards, which are `prefill_seconds`.
  """
  for number, run in enumerate(runs, 1):
    telling(f"speeds: warming up {number}/{len(runs)}")
    for batch in warm or each[:1]:
      run(batch)
  found: list[dict[str, Any]] = [{"tokens": [], "seconds": [], "prefill_seconds": []} for _ in runs]
  for turn in range(turns):
    for of in found:
      of["seconds"].append([])
      of["prefill_seconds"].append([])
    for number, batch in enumerate(each):
      telling(f"speeds: turn {turn + 1}/{turns}, batch {number + 1}/{len(each)}")
      for i in range(len(runs)):
        at = (turn + number + i) % len(runs)
        done, of = runs[at](batch), found[at]
        of["seconds"][turn].append(round(done.decode_seconds, 6))
        of["prefill_seconds"][turn].append(round(done.prefill_seconds, 6))
        if turn == 0:
          of["tokens"].append(done.tokens)
  return found
