"""Latency of a forward against the tokens it carries, and where more of them stop being free.

Appendix D of Jacobi Forcing: drafts cost nothing while a forward is bound by reading the weights;
beyond some number of tokens its time grows with them. That knee says how large blocks and how many
candidates may be: (block size) x (chains verified together) should lie just below it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sbdjax import cache as kv_cache
from sbdjax.bench.timing import Summary, seconds_a_call
from sbdjax.lm import LM
from sbdjax.masks import Cached
from sbdjax.nn import prepare


@dataclasses.dataclass(frozen=True)
class ForwardTiming:
  """One forward.

  Attributes:
    block_size: n, new tokens of a row.
    tokens: of the forward, over all rows.
    seconds: median; `low` and `high`: fastest and slowest.
  """

  block_size: int
  tokens: int
  seconds: float
  low: float
  high: float


@dataclasses.dataclass(frozen=True)
class Knee:
  """Two straight lines: `floor` seconds up to `tokens` tokens, in proportion to them beyond.

  Attributes:
    tokens: where the lines meet.
    floor: seconds of the first.
    error: root mean square of log(measured / lines).
    inside: whether points lie on both sides; if not, the knee lies outside what was measured.
  """

  tokens: float
  floor: float
  error: float
  inside: bool

  def __call__(self, tokens: float | Sequence[float] | np.ndarray) -> np.ndarray:
    return self.floor * np.maximum(1.0, np.asarray(tokens) / self.tokens)


def find_knee(tokens: Sequence[float], seconds: Sequence[float]) -> Knee:
  """The roofline max(floor, slope x tokens) nearest to the points in the logarithm of the time."""
  tokens_N, log_seconds_N = np.asarray(tokens, float), np.log(np.asarray(seconds, float))
  tried = np.geomspace(tokens_N.min(), tokens_N.max(), 2001)
  above = np.log(np.maximum(1.0, tokens_N / tried[:, None]))
  floors = (log_seconds_N - above).mean(axis=1)
  errors = np.sqrt(((log_seconds_N - above - floors[:, None]) ** 2).mean(axis=1))
  best = int(np.argmin(errors))
  at = float(tried[best])
  inside = bool((tokens_N < at).any() and (tokens_N > at * (1 + 1e-9)).any())
  return Knee(at, float(np.exp(floors[best])), float(errors[best]), inside)


def cached_forward(
  lm: LM,
  params: Any,
  block_size: int,
  rows: int,
  context: int,
  num_causal: int | None = None,
) -> Callable[[], jax.Array]:
  """A call that runs a cached forward of `block_size` new tokens per row, argmax included.

  The cache holds `context` tokens per row. The first `num_causal` of the new tokens are causal, the
  others one open block; None: all are causal. `params` are taken as they are: see `LM.prepare`.
  """
  num_causal = block_size if num_causal is None else num_causal
  cache = lm.init_cache(rows, context + block_size)
  cache = kv_cache.commit(cache, jnp.full((rows,), context, jnp.int32))
  position_BxT = jnp.broadcast_to(context + jnp.arange(block_size), (rows, block_size))
  known = lm.config.vocab_size - (lm.config.mask_id is not None)
  tokens_BxT = (position_BxT * 7 + jnp.arange(rows)[:, None]) % known

  # The cache is handed over and taken back, as in a decoding loop: it is written in place.
  options = prepare.compiler_options(params)

  @functools.partial(jax.jit, donate_argnums=2, compiler_options=options)
  def forward(params, tokens_BxT, cache):
    mask = Cached(cache.length_B, jnp.zeros((rows,), jnp.int32), num_causal=num_causal)
    hidden, cache = lm.apply(params, tokens_BxT, positions_BxT=position_BxT, mask=mask, cache=cache)
    return jnp.argmax(lm.logits(params, hidden), axis=-1), cache

  def run():
    nonlocal cache
    tokens, cache = forward(params, tokens_BxT, cache)
    return tokens

  return run


def time_forward(
  lm: LM,
  params: Any,
  block_size: int,
  rows: int,
  context: int,
  repeats: int,
  *,
  num_causal: int | None = None,
  lasting: float = 0.0,
) -> Summary:
  """Seconds of a `cached_forward`.

  Parameters are prepared, and the forward is compiled and run once before it is timed; for
  `lasting` see `timing.seconds_a_call`.
  """
  params = prepare.for_sums(lm.prepare(params, rows * block_size))
  run = cached_forward(lm, params, block_size, rows, context, num_causal)
  return seconds_a_call(run, repeats, lasting=lasting)


def measure(
  lm: LM,
  params: Any,
  block_sizes: Sequence[int],
  totals: Sequence[int],
  context: int,
  repeats: int,
) -> Iterator[ForwardTiming]:
  """A point for every block size and every number of tokens that is a multiple of it."""
  for block_size in block_sizes:
    for total in totals:
      if total % block_size == 0:
        seconds = time_forward(lm, params, block_size, total // block_size, context, repeats)
        yield ForwardTiming(block_size, total, *seconds)
