"""What a sampler adds to its forwards: choosing tokens, revealing them, and keeping the books."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sbdjax import cache as kv_cache
from sbdjax.bench.timing import Summary, TimedDecoder, compile_for, summarise
from sbdjax.decode.method import Method
from sbdjax.decode.prepared import Prepared
from sbdjax.lm import LM
from sbdjax.masks import Cached


class Forward(NamedTuple):
  """A kind of forward that a sampler runs.

  Attributes:
    causal: tokens of a row that are causal; they come first.
    block: tokens of the open block after them; 0: none.
    predicted: last tokens of a row whose logits are made.
  """

  causal: int
  block: int
  predicted: int


class Overhead(NamedTuple):
  """Time of a sampler's steps beside that of their forwards alone.

  Attributes:
    steps: forwards of the run.
    step_seconds: median over runs of the time of a step.
    forward_seconds: the same of its forward, logits and writing to the cache included.
    share: step / forward - 1, median, lowest and highest over runs.
  """

  steps: int
  step_seconds: float
  forward_seconds: float
  share: Summary


def counts(forwards: Sequence[Forward], nfe: int, query_tokens: int) -> list[int]:
  """How often each of one or two kinds of forward ran, from their number and summed widths.

  Raises:
    ValueError: no such numbers.
  """
  widths = [f.causal + f.block for f in forwards]
  first = nfe
  if len(widths) == 2:
    first = (widths[1] * nfe - query_tokens) // (widths[1] - widths[0])
  found = [first, nfe - first][: len(widths)]
  if min(found) < 0 or sum(n * w for n, w in zip(found, widths, strict=True)) != query_tokens:
    raise ValueError(f"{nfe} forwards of {widths} tokens never have {query_tokens} in all")
  return found


def forward_loop(lm: LM, forward: Forward) -> Callable:
  """(params, cache, times) -> cache: that many forwards, each needing the one before it.

  The cache is written after its committed slots and nothing is chosen from the logits, but all of
  them are made.
  """
  width = forward.causal + forward.block

  def body(params, _, carry):
    tokens_BxT, cache = carry
    rows = tokens_BxT.shape[0]
    zero_B = jnp.zeros((rows,), jnp.int32)
    hidden, cache = lm.apply(
      params,
      tokens_BxT,
      positions_BxT=cache.length_B[:, None] + jnp.arange(width),
      mask=Cached(cache.length_B, zero_B, num_causal=forward.causal),
      cache=cache,
    )
    logits = lm.logits(params, hidden[:, width - forward.predicted :])
    # Whole, though a single one is looked at: no logit may be optimised away.
    first_B = jax.lax.optimization_barrier(logits)[:, 0, 0]
    return (tokens_BxT + (first_B > 1e30)[:, None]) % lm.config.vocab_size, cache

  def loop(params, cache, times):
    tokens = jnp.zeros((cache.length_B.shape[0], width), jnp.int32)
    return jax.lax.fori_loop(0, times, functools.partial(body, params), (tokens, cache))[1]

  return loop


def measure(
  lm: LM,
  params: Any,
  decoder: TimedDecoder,
  method: Method,
  forwards: Sequence[Forward],
  prompt: Sequence[int],
  *,
  batch_size: int,
  max_tokens: int,
  repeats: int,
) -> Overhead:
  """Times a sampler and loops of its forwards in turns, over rows that are all the same.

  Equal rows run the same kind of forward at the same time, so the number of each follows from a
  row's own counts. The loops' cache is as long as the sampler's is half-way, and their parameters
  are prepared as the sampler's are.

  Args:
    lm, params: the network.
    decoder: of the network; rows must stop by its length limit.
    method: what is timed; it must draw nothing.
    forwards: the kinds of forward it runs, one or two, narrow ones first.
    prompt: of every row.
    batch_size: rows.
    max_tokens: that the sampler generates.
    repeats: runs.
  """
  prompts = [list(prompt)] * batch_size
  decode = lambda: decoder.run(method, params, prompts, jax.random.key(0), batch_size)
  result = decode().results[0]
  times = counts(forwards, int(result.nfe), int(result.query_tokens))

  widest = max(f.causal + f.block for f in forwards)
  half = len(prompt) + max_tokens // 2
  cache = lm.init_cache(batch_size, len(prompt) + max_tokens + widest)
  cache = kv_cache.commit(cache, jnp.full((batch_size,), half, jnp.int32))
  prepared = Prepared(lm)(method, params, batch_size)
  compile_loop = lambda f: compile_for(
    jax.jit(forward_loop(lm, f), donate_argnums=1), prepared, cache, 1
  )
  loops = [compile_loop(f).call for f in forwards]

  def run_loops() -> float:
    nonlocal cache
    seconds = 0.0
    for loop, n in zip(loops, times, strict=True):
      start = time.perf_counter()
      cache = jax.block_until_ready(loop(prepared, cache, n))
      seconds += time.perf_counter() - start
    return seconds

  run_loops()  # the first execution is slow
  pairs = [(decode().decode_seconds, run_loops()) for _ in range(repeats)]
  return Overhead(
    steps=int(result.nfe),
    step_seconds=summarise([a for a, _ in pairs]).median / result.nfe,
    forward_seconds=summarise([b for _, b in pairs]).median / result.nfe,
    share=summarise([a / b - 1 for a, b in pairs]),
  )
