"""Times a sampler: compiling, the prompt's forward, and decoding, each apart."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from sbdjax.decode.base import Sampler
from sbdjax.decode.generate import Result, pad_prompts, results_of


class Pass(NamedTuple):
  """One run over all prompts.

  Attributes:
    results: in the order of the prompts.
    prefill_seconds: wall-clock of the prompts' forwards, summed over batches.
    decode_seconds: wall-clock of everything after them.
  """

  results: list[Result]
  prefill_seconds: float
  decode_seconds: float

  @property
  def tokens(self) -> int:
    """Valid tokens: EOS included, nothing behind it."""
    return sum(r.valid for r in self.results)

  @property
  def tokens_per_second(self) -> float:
    """Valid tokens / decode_seconds."""
    return self.tokens / self.decode_seconds


class Summary(NamedTuple):
  """Median, smallest and largest of repeated measurements."""

  median: float
  low: float
  high: float


def summarise(values: Sequence[float]) -> Summary:
  """Raises ValueError for no values."""
  return Summary(float(np.median(values)), float(min(values)), float(max(values)))


class TimedDecoder:
  """A sampler compiled in two parts, the prompt's forward and the loop.

  Attributes:
    compile_seconds: time spent compiling so far.
  """

  def __init__(self, build: Callable[[Any], Sampler]):
    """`build(numbers) -> Sampler` is called while tracing: `numbers` may change at no cost."""

    def loop(numbers, params, state):
      sampler = build(numbers)
      going = lambda s: ~jax.numpy.all(sampler.done(s))
      return jax.lax.while_loop(going, functools.partial(sampler.step, params), state).out

    self._init = jax.jit(lambda numbers, params, *prompt: build(numbers).init(params, *prompt))
    self._loop = jax.jit(loop)
    self._compiled = {}
    self.compile_seconds = 0.0

  def run(
    self,
    params,
    prompts: Sequence[Sequence[int]],
    key: jax.Array,
    numbers: Any = None,
    batch_size: int = 1,
  ) -> Pass:
    """Decodes all prompts, `batch_size` at a time; row i uses `fold_in(key, i)`.

    The last batch is filled up with its last prompt, whose extra results are dropped.
    """
    padded, lengths = pad_prompts(prompts)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, np.arange(len(prompts)))
    results, prefill, decode = [], 0.0, 0.0
    for first in range(0, len(prompts), batch_size):
      rows = np.minimum(np.arange(first, first + batch_size), len(prompts) - 1)
      args = jax.device_put((numbers, params, padded[rows], lengths[rows], keys[rows]))
      init, loop = self._executables(args)
      start = time.perf_counter()
      state = jax.block_until_ready(init(*args))
      middle = time.perf_counter()
      out = jax.block_until_ready(loop(args[0], params, state))
      end = time.perf_counter()
      prefill, decode = prefill + middle - start, decode + end - middle
      results += results_of(out, min(batch_size, len(prompts) - first), end - start)
    return Pass(results, prefill, decode)

  def _executables(self, args):
    signature = str(jax.tree.map(jax.typeof, args))
    if signature not in self._compiled:
      start = time.perf_counter()
      init = self._init.lower(*args).compile()
      state = jax.eval_shape(self._init, *args)
      loop = self._loop.lower(args[0], args[1], state).compile()
      self._compiled[signature] = (init, loop)
      self.compile_seconds += time.perf_counter() - start
    return self._compiled[signature]
