"""Decoding methods compared prompt by prompt: a prompt is run once, and every method starts from its cache.

Prompts differ in length and in how well they draft, so methods take turns on each of them, and what
is compared are sums over prompts (`sbdjax.bootstrap` has their intervals). All prompts are padded to
one width, so each method is compiled once; the prompt's own forward is timed apart, for it is the
same for all.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sbdjax import cache as kv_cache
from sbdjax.bench.timing import Program, compile_for, sampler_programs
from sbdjax.cache import KVCache
from sbdjax.decode import sizes
from sbdjax.decode.base import Limits
from sbdjax.decode.causal.ar import AR, prefill
from sbdjax.decode.generate import Result, pad_prompts, results_of
from sbdjax.decode.kept import KeptText
from sbdjax.decode.method import Method
from sbdjax.decode.prepared import Prepared
from sbdjax.decode.programs import Programs
from sbdjax.decode.stream import Frame
from sbdjax.lm import LM
from sbdjax.masks import Cached


class PromptDecoder:
  """Decodes one prompt at a time with methods that keep an exact cache (`Method.cache_slots`).

  Attributes:
    compile_seconds: time spent compiling so far.
  """

  def __init__(self, lm: LM, params: Any, limits: Limits, width: int):
    """For prompts of at most `width` tokens; `limits` hold for all of them."""
    self._lm, self._params, self._limits, self._width = lm, params, limits, width
    # All of them, as in `TimedDecoder`.
    self._programs, self._prepared = Programs(keep=None), Prepared(lm)
    self.compile_seconds = 0.0

  def prefill(self, method: Method, prompt: Sequence[int]) -> tuple[KeptText, float]:
    """Runs all tokens of a prompt but the last; returns what is kept of them, and the seconds.

    Args:
      method: whose parameters are used: they are prepared for it.
    """
    width = min(self._width, sizes.rest(len(prompt)))
    params = self._prepared(method, self._params, 1)
    padded, length_B = pad_prompts([prompt], width)
    args = params, jnp.asarray(padded), jnp.asarray(length_B) - 1
    run = functools.partial(prefill, self._lm, capacity=width)
    program = self._programs.find(args, lambda: self._counted(compile_for(jax.jit(run), *args)))
    start = time.perf_counter()
    cache = jax.block_until_ready(program(*args))
    return KeptText(list(prompt[:-1]), cache), time.perf_counter() - start

  def run(self, method: Method, prompt: Sequence[int], kept: KeptText, key: jax.Array) -> Result:
    """Decodes a prompt whose beginning is kept; `seconds` of the result are those of the loop."""
    params = self._prepared(method, self._params, 1)
    needed = method.cache_slots(self._width, self._limits)
    assert needed is not None  # what this class is for
    slots = jax.eval_shape(lambda: self._lm.init_cache(1, needed)).capacity
    beginning = kept.beginning([prompt], self._width, slots)
    more = () if beginning is None else (beginning,)  # the prompt is as short as what is run again
    padded = pad_prompts([prompt], self._width)
    args = jax.device_put((method, params, self._limits, *padded, key[None], *more))
    init, loop = self._programs.find(args, functools.partial(self._compile, args))
    state = jax.block_until_ready(init(*args))
    start = time.perf_counter()
    out = jax.block_until_ready(loop(*args[:3], state))
    seconds = time.perf_counter() - start
    return results_of(out, 1, seconds, 1, method.counts_prefill)[0]

  def nll(self, prompt: Sequence[int], kept: KeptText, tokens: Sequence[int]) -> float:
    """-log p of `tokens` after the prompt, nats, by the model's own next-token distributions."""
    params = self._prepared(AR(), self._params, 1)
    text = [prompt[-1], *tokens][: self._limits.max_tokens]
    padded, _ = pad_prompts([text], self._limits.max_tokens)
    cache = kv_cache.resized(kept.cache, self._width + self._limits.max_tokens)
    cache = cache.replace(length_B=jnp.full((1,), len(prompt) - 1, jnp.int32))
    args = params, jnp.asarray(padded), cache
    run = functools.partial(_next_log_probs, self._lm)
    program = self._programs.find(args, lambda: self._counted(compile_for(jax.jit(run), *args)))
    log_p_TxV = np.asarray(program(*args))
    return -float(log_p_TxV[np.arange(len(tokens)), list(tokens)].sum())

  def _compile(self, args: tuple) -> tuple[Any, Any]:
    init, loop = sampler_programs(self._lm, *args)
    return self._counted(init), self._counted(loop)

  def _counted(self, program: Program) -> Any:
    self.compile_seconds += program.compile_seconds
    return program.call


def _next_log_probs(lm: LM, params: Any, tokens_1xT: jax.Array, cache: KVCache) -> jax.Array:
  """float32 [T, V]: log p of what follows each token, which come after those in the cache."""
  length_B, width = cache.length_B, tokens_1xT.shape[1]
  hidden, _ = lm.apply(
    params,
    tokens_1xT,
    positions_BxT=length_B[:, None] + jnp.arange(width),
    mask=Cached(length_B, jnp.zeros_like(length_B), num_causal=width),
    cache=cache,
  )
  return jax.nn.log_softmax(lm.logits(params, hidden[0]), axis=-1)


class Acceptance(NamedTuple):
  """Drafts by their place after the last final token.

  Attributes:
    verified: how many were verified at each place.
    accepted: how many of them became text.
  """

  verified: np.ndarray
  accepted: np.ndarray


def acceptance(frames: Iterator[Frame]) -> Acceptance:
  """What the forwards of one text verified, counted by place."""
  *earlier, last = frames
  text = last.result.tokens
  verified, accepted = (np.zeros(len(last.drafts), int) for _ in range(2))
  start = 0
  for frame in (*earlier, last):
    drafts, end = np.asarray(frame.drafts), len(frame.result.tokens)
    there = np.flatnonzero(drafts >= 0)
    verified[there] += 1
    right = [i for i in there if start + i < end and drafts[i] == text[start + i]]
    accepted[right] += 1
    start = end
  return Acceptance(verified, accepted)
