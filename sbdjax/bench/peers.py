"""Greedy decoding by several programs on the same weights, in turns.

Every contestant runs once per turn, in an order that rotates, so that other work on the machine and
the clock of the processor hit all alike. What is compared is the ratio of a turn, of which the
median is shown with a bootstrap interval over turns. The bytes of weights that must be read
per forward, times forwards per second, is the bandwidth that a contestant needs; `reader` measures
what the memory gives. The cache of keys and values is not counted.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from sbdjax import masks
from sbdjax.bench.timing import Summary, TimedDecoder, summarise
from sbdjax.decode.method import Method
from sbdjax.lm import LM
from sbdjax.nn import adapter

T = TypeVar("T")


class Turn(NamedTuple):
  """One run of a contestant.

  Attributes:
    tokens: all it generated.
    timed: how many of them `seconds` are of; some start their clock after the first.
    forwards: that `seconds` are of.
    seconds: wall-clock.
  """

  tokens: list[int]
  timed: int
  forwards: float
  seconds: float


class Contestant(NamedTuple):
  """A program that decodes.

  Attributes:
    name: shown.
    threads: that it may use.
    weight_bytes: bytes of weights that must be read per forward.
    run: decodes once.
  """

  name: str
  threads: int
  weight_bytes: int
  run: Callable[[], Turn]


@dataclasses.dataclass(frozen=True)
class Difference:
  """Where a contestant first chose another token than the reference.

  Attributes:
    index: of the token, counted from 0 after the token that all start from.
    reference: the reference's token.
    token: the contestant's.
    logit_gap: logit of `reference` minus that of `token` in our network, after the tokens that both
      agree on. About 0 is a tie, which rounding decides.
  """

  index: int
  reference: int
  token: int
  logit_gap: float


@dataclasses.dataclass(frozen=True)
class PeerTiming:
  """One contestant, over all turns.

  Attributes:
    contestant, threads: what was timed.
    tokens: generated in a run.
    tokens_per_second: median over turns; `low` and `high`: slowest and fastest.
    tokens_per_forward: of the timed part.
    ratio: the reference's speed / this one's, median over turns: above 1 the reference is faster.
    ratio_low, ratio_high: its 95 % bootstrap interval over turns.
    weight_bytes: bytes of weights that must be read per forward.
    bandwidth: bytes of weights per second at the median speed.
    of_read: that as a share of the memory's read bandwidth with as many threads.
    difference: None where all tokens are the reference's, up to the shorter of both.
  """

  contestant: str
  threads: int
  tokens: int
  tokens_per_second: float
  low: float
  high: float
  tokens_per_forward: float
  ratio: float
  ratio_low: float
  ratio_high: float
  weight_bytes: int
  bandwidth: float
  of_read: float
  difference: Difference | None


def thread_counts() -> list[int]:
  """1, and as many threads as this process may run at once."""
  affinity = getattr(os, "sched_getaffinity", None)  # only some systems have it
  most = len(affinity(0)) if affinity else os.cpu_count() or 1
  return sorted({1, most})


def in_turns(
  calls: Sequence[Callable[[], Any]], turns: int
) -> tuple[list[Any], list[tuple[Any, ...]]]:
  """Calls each of `calls` once to warm up, and then `turns` times, each turn from the next one on.

  Returns:
    What each gave when it warmed up, and for each call what it gave in all turns.
  """
  first = [call() for call in calls]
  found: list[list[Any]] = [[] for _ in calls]
  for turn in range(turns):
    for i in range(len(calls)):
      at = (turn + i) % len(calls)
      found[at].append(calls[at]())
  return first, [tuple(values) for values in found]


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
  """Index of the first token that differs; None: there is none up to the shorter end."""
  return next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)


def logit_gap(lm: LM, params: Any, text: Sequence[int], token: int, other: int) -> float:
  """Logit of `token` minus that of `other` after `text`, in one causal forward without a cache."""
  tokens_1xT = jnp.asarray([text], jnp.int32)

  @jax.jit
  def gap(params, tokens_1xT):
    positions = jnp.arange(tokens_1xT.shape[1], dtype=jnp.int32)[None]
    hidden, _ = lm.apply(params, tokens_1xT, positions_BxT=positions, mask=masks.Causal())
    logits_V = lm.logits(params, hidden[0, -1])
    return logits_V[token] - logits_V[other]

  return float(gap(params, tokens_1xT))


def compare_tokens(
  reference: Sequence[int],
  runs: Sequence[Sequence[int]],
  gap: Callable[[Sequence[int], int, int], float],
) -> Difference | None:
  """The difference of the first of `runs` that has one.

  Args:
    gap: (tokens that agree, reference's token, other token) -> their difference in logits.
  """
  for tokens in runs:
    at = first_difference(reference, tokens)
    if at is not None:
      pair = reference[at], tokens[at]
      return Difference(at, *pair, gap(reference[:at], *pair))
  return None


def weights_read(params: Mapping[str, Any], itemsize: int | None = None) -> int:
  """Bytes of parameters that a next-token forward of few tokens reads.

  All but an adapter, which acts on open blocks alone, and tables of which single rows are taken.

  Args:
    itemsize: bytes of a number; None: as `params` are stored.
  """
  tables = ["position_embedding", *["embedding"] * ("head" in params)]
  base, _ = adapter.split(params)
  read = {name: value for name, value in base.items() if name not in tables}
  return sum(x.size * (itemsize or x.dtype.itemsize) for x in jax.tree.leaves(read))


def ours(decoder: TimedDecoder, method: Method, params: Any, start: int) -> Callable[[], Turn]:
  """Decodes from the one token `start`; the forward of the prompt is not timed."""

  def run() -> Turn:
    found = decoder.run(method, params, [[start]], jax.random.key(0))
    (result,) = found.results
    return Turn(result.text_tokens, found.tokens, result.nfe, found.decode_seconds)

  return run


def reader(size: int, threads: int) -> Callable[[], float]:
  """Reads `size` bytes of float32 by so many threads at once, each its own part; bytes per second.

  A maximum in numpy: its threads can be told, while XLA takes all it may have, and one thread reads
  more in the same time than by a sum. Four readings a call.
  """
  parts = np.array_split(np.ones(size // 4, np.float32), threads)
  pool = concurrent.futures.ThreadPoolExecutor(threads)

  def read() -> float:
    start = time.perf_counter()
    for _ in range(_READINGS):
      largest = max(pool.map(np.max, parts))
    seconds = time.perf_counter() - start
    assert largest == 1
    return _READINGS * sum(part.nbytes for part in parts) / seconds

  return read


_READINGS = 4


def timings(
  contestants: Sequence[Contestant],
  runs: Sequence[Sequence[Turn]],
  differences: Sequence[Difference | None],
  read: Mapping[int, Summary],
  bounds: Callable[[Sequence[float]], tuple[float, float]],
) -> list[PeerTiming]:
  """A row for every contestant, of which the first is the reference.

  Args:
    runs: of each contestant, a turn after the other.
    differences: of each.
    read: threads -> bytes per second that they read.
    bounds: of the median of one number a turn.
  """
  speeds = [[turn.timed / turn.seconds for turn in turns] for turns in runs]
  rows = []
  for contestant, turns, speed, difference in zip(
    contestants, runs, speeds, differences, strict=True
  ):
    ratios = [a / b for a, b in zip(speeds[0], speed, strict=True)]
    found, last = summarise(speed), turns[-1]
    per_forward = last.timed / last.forwards
    bandwidth = contestant.weight_bytes * found.median / per_forward
    rows.append(
      PeerTiming(
        contestant.name,
        contestant.threads,
        len(last.tokens),
        *found,
        per_forward,
        summarise(ratios).median,
        *bounds(ratios),
        contestant.weight_bytes,
        bandwidth,
        bandwidth / read[contestant.threads].median,
        difference,
      )
    )
  return rows
