"""Which lossless decoding setting is the fastest here: candidates, what to expect of them, a choice.

All candidates give the text of autoregressive (AR) decoding in fewer, wider forwards. How many fewer
depends on model and prompts, what a wider forward costs on the device. Both are measured:

1. Cached forwards of `WIDTHS` tokens take turns, which gives the cost of each relative to one token.
2. Every candidate decodes a few prompts; its tokens per forward / the cost of its mean width is what
   to expect of it, in units of AR. Those that lose even if every draft is right are left out.
3. The best of them and AR decode all prompts in turns. What was expected decides nothing more: the
   one with the largest median ratio of a turn wins, AR where none is above 1.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from sbdjax.bench import parallel, peers
from sbdjax.bench.timing import Pass, Summary, TimedDecoder, seconds_a_call, summarise
from sbdjax.decode.causal.ar import AR
from sbdjax.decode.causal.verified_sbd import VerifiedSBD
from sbdjax.decode.decoding import Decoding, from_flat
from sbdjax.decode.generate import Result
from sbdjax.decode.jacobi.jacobi import JacobiBase, JacobiWindow
from sbdjax.decode.method import Method
from sbdjax.decode.prepared import Prepared
from sbdjax.lm import LM

Settings = Mapping[str, Any]

# Of the forwards that are timed. The widest candidate has forwards of 39 tokens.
WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
# Seconds of a measurement of forwards, of which one may take less than a clock can tell.
_LASTING = 0.05

PLAIN: Settings = {"name": "ar"}


class Candidate(NamedTuple):
  """A setting to try.

  Attributes:
    settings: its flat names; what is left out has its default.
    width: query tokens of a forward, on average if every draft is right.
    most: tokens per forward then.
  """

  settings: Settings
  width: float
  most: float


def candidates(masked: bool) -> list[Candidate]:
  """Lossless settings other than AR.

  Args:
    masked: the model has a mask token.
  """
  found = [_window(n, pool) for n in (4, 8) for pool in ("none", "ngrams")]
  if masked:
    found += [
      _verified(block_size, second, *schedule)
      for block_size in (3, 4, 6, 8)
      for schedule in _SCHEDULES
      for second in (False, True)
    ]
  return found


def _window(block_size: int, pool: str) -> Candidate:
  chains = {"none": 1, "ngrams": 4}[pool]
  settings = {"name": "jacobi_window", "block_size": block_size, "pool": pool}
  return Candidate(settings, block_size * chains, block_size)


# Settings of a schedule, the forwards of a round, and the blocks of masks in it.
_SCHEDULES: tuple[tuple[Settings, int, int], ...] = (
  ({"drafting": "alternating"}, 2, 1),
  ({"drafting": "fused"}, 1, 1),
  ({"drafting": "fan_out", "points": 1}, 1, 1),
  ({"drafting": "fan_out", "points": 2}, 1, 2),
  ({"drafting": "fan_out", "points": 3}, 1, 3),
)


def _verified(
  block_size: int, second: bool, schedule: Settings, forwards: int, blocks: int
) -> Candidate:
  """Verified SBD: a round verifies a chain once, drafts blocks, and every forward adds a token."""
  settings = {"name": "sbd_verified", "block_size": block_size, "candidates": second}
  chain = block_size + second * (block_size - 1)
  tokens = chain + blocks * block_size + (forwards - 1)
  most = block_size + (forwards - 1)
  return Candidate({**settings, **schedule}, tokens / forwards, most / forwards)


def decoding_of(settings: Settings, max_tokens: int) -> Decoding:
  """A candidate as what decodes."""
  return from_flat({**settings, "max_tokens": max_tokens})


def gives_text_of_ar(method: Method) -> bool:
  """Whether it puts out the tokens of AR with the same seed, at any temperature (ties apart)."""
  if isinstance(method, VerifiedSBD | JacobiBase):
    return method.verify.common_noise
  return isinstance(method, AR)


@dataclasses.dataclass(frozen=True)
class Cost:
  """What a forward costs, in units of one of a single token.

  Attributes:
    widths: tokens, ascending from 1.
    relative: cost of each.
  """

  widths: tuple[int, ...]
  relative: tuple[float, ...]

  def __call__(self, width: float) -> float:
    """Interpolated; beyond the widest the last slope goes on, if it rises."""
    if width <= self.widths[-1]:
      return float(np.interp(width, self.widths, self.relative))
    (w0, w1), (c0, c1) = self.widths[-2:], self.relative[-2:]
    return c1 + max(0.0, (c1 - c0) / (w1 - w0)) * (width - w1)


def cost_of(widths: Sequence[int], seconds: Sequence[Sequence[float]]) -> Cost:
  """The median over turns of each width's seconds / those of one token in the same turn.

  Args:
    widths: ascending from 1.
    seconds: of each width, one number a turn.
  """
  ratios = [np.median(np.divide(own, seconds[0])) for own in seconds]
  return Cost(tuple(widths), tuple(map(float, ratios)))


def is_hopeless(candidate: Candidate, cost: Cost) -> bool:
  """Whether AR is faster even if every draft of the candidate is right."""
  return candidate.most <= cost(candidate.width)


@dataclasses.dataclass(frozen=True)
class Trial:
  """What is known of a setting.

  Attributes:
    settings: flat names.
    tokens_per_forward: valid tokens / forwards, over the prompts it decoded last.
    width: query tokens of a forward there, on average.
    expected: speed in units of AR, by the cost of that width.
    same_text: its tokens are those of AR.
    ratio: its speed in units of AR's in the same turn, over turns; None: not timed.
    tokens_per_second: over turns, the prompts' forwards apart; None: not timed.
  """

  settings: Settings
  tokens_per_forward: float
  width: float
  expected: float
  same_text: bool
  ratio: Summary | None = None
  tokens_per_second: Summary | None = None


def trial_of(
  settings: Settings, results: Sequence[Result], reference: Sequence[Result], cost: Cost
) -> Trial:
  """What a setting's results say, beside those of AR for the same prompts."""
  nfe = sum(r.nfe for r in results)
  tokens_per_forward = sum(r.valid for r in results) / nfe
  width = sum(r.query_tokens for r in results) / nfe
  same = texts(results) == texts(reference)
  return Trial(settings, tokens_per_forward, width, tokens_per_forward / cost(width), same)


def texts(results: Sequence[Result]) -> list[list[int]]:
  """The valid tokens of each."""
  return [r.text_tokens for r in results]


def finalists(trials: Sequence[Trial], count: int) -> list[Trial]:
  """The `count` of which most is expected, the best first; none with another text than AR's."""
  fit = [t for t in trials if t.same_text]
  return sorted(fit, key=lambda t: t.expected, reverse=True)[:count]


def timed(trial: Trial, passes: Sequence[Pass], of_ar: Sequence[Pass], cost: Cost) -> Trial:
  """`trial` with what its passes over all prompts say, one a turn, beside those of AR."""
  found = trial_of(trial.settings, passes[0].results, of_ar[0].results, cost)
  speeds = [p.tokens_per_second for p in passes]
  ratios = [own / p.tokens_per_second for own, p in zip(speeds, of_ar, strict=True)]
  same = found.same_text and trial.same_text
  return dataclasses.replace(
    found, same_text=same, ratio=summarise(ratios), tokens_per_second=summarise(speeds)
  )


def choose(trials: Sequence[Trial]) -> Trial | None:
  """The timed one of the largest median ratio; None where none with AR's text is above 1."""
  faster = [t for t in trials if t.same_text and t.ratio is not None and t.ratio.median > 1]
  return max(faster, key=lambda t: t.ratio.median if t.ratio else 0.0, default=None)


def time_forwards(
  lm: LM, prepared: Prepared, params: Any, context: int, turns: int
) -> list[tuple[float, ...]]:
  """Seconds of cached forwards of `WIDTHS` tokens of one row, `turns` numbers of each.

  Args:
    prepared: of `lm`; keeps what decoding needs as well.
    context: tokens in the cache.
  """

  def timer(width: int) -> Callable[[], float]:
    method = AR() if width == 1 else JacobiWindow()
    run = parallel.cached_forward(lm, prepared(method, params, 1), width, 1, context)
    return lambda: seconds_a_call(run, 1, lasting=_LASTING).median

  return peers.in_turns([timer(width) for width in WIDTHS], turns)[1]


def try_out(
  decoder: TimedDecoder,
  params: Any,
  prompts: Sequence[Sequence[int]],
  tried: Sequence[Candidate],
  max_tokens: int,
  cost: Cost,
) -> Iterator[Trial]:
  """Every candidate on a few prompts, one prompt at a time; AR first."""
  run = lambda settings: decode(decoder, params, prompts, settings, max_tokens).results
  reference = run(PLAIN)
  yield trial_of(PLAIN, reference, reference, cost)
  for candidate in tried:
    yield trial_of(candidate.settings, run(candidate.settings), reference, cost)


def race(
  decoder: TimedDecoder,
  params: Any,
  prompts: Sequence[Sequence[int]],
  settings: Sequence[Settings],
  max_tokens: int,
  turns: int,
) -> list[tuple[Pass, ...]]:
  """All prompts by all settings in turns, one prompt at a time; the passes of each setting."""
  calls = [
    functools.partial(decode, decoder, params, prompts, some, max_tokens) for some in settings
  ]
  return peers.in_turns(calls, turns)[1]


def decode(
  decoder: TimedDecoder,
  params: Any,
  prompts: Sequence[Sequence[int]],
  settings: Settings,
  max_tokens: int,
) -> Pass:
  """All prompts, one at a time."""
  method = decoding_of(settings, max_tokens).method
  return decoder.run(method, params, prompts, jax.random.key(0))
