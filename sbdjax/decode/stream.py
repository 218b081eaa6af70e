"""Decoding step by step: the same `step` as the compiled loop, one forward per frame."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from sbdjax.decode.base import Limits
from sbdjax.decode.generate import Result, pad_prompts, results_of
from sbdjax.decode.method import Canvas, Method
from sbdjax.decode.prepared import Prepared


@dataclasses.dataclass(frozen=True)
class Frame:
  """What one forward has made of one row.

  Attributes:
    result: the row so far; `seconds` are those of the forwards, without display and compilation.
    committed: generated tokens before the canvas; all of them for a method without one.
    canvas: tokens of the canvas the forward worked on, masks included; -1 after the end.
    fresh: of each token of the canvas, whether the forward revealed it.
    drafts: of each token of the canvas, what a draft proposed for it; -1 for nothing.
    done: the row is finished.
  """

  result: Result
  committed: int
  canvas: list[int]
  fresh: list[bool]
  drafts: list[int]
  done: bool


class Streamer:
  """A method compiled step by step, for one prompt at a time.

  Attributes:
    compile_seconds: time spent compiling.
  """

  def __init__(
    self,
    lm: Any,
    limits: Limits,
    method: Method,
    params: Any,
    prompts: Sequence[Sequence[int]],
    width: int = 0,
  ):
    """Compiles for prompts as long as the longest of `prompts`, or of `width` tokens where that is
    more, and prepares `params`."""
    sampler = method.sampler(lm, limits)
    params = Prepared(lm)(method, params, 1)
    self._method, self._params, self._done = method, params, sampler.done
    self._padded, self._lengths = pad_prompts(prompts, width, method.any_order)
    row = (self._padded[:1], self._lengths[:1], jax.random.key(0)[None])
    start = time.perf_counter()
    self._init = jax.jit(sampler.init).lower(params, *row).compile()
    state = jax.eval_shape(sampler.init, params, *row)
    self._step = jax.jit(sampler.step).lower(params, state).compile()
    self.compile_seconds = time.perf_counter() - start

  @property
  def width(self) -> int:
    """The longest prompt it takes, in tokens."""
    return self._padded.shape[1]

  def with_prompts(self, prompts: Sequence[Sequence[int]]) -> Streamer:
    """The same programs for other prompts, none longer than `width`."""
    other = copy.copy(self)
    other._padded, other._lengths = pad_prompts(prompts, self.width, self._method.any_order)
    return other

  def frames(self, index: int, key: jax.Array) -> Iterator[Frame]:
    """Decodes prompt `index`: a frame after the prompt's forward, and one after each further one.

    Args:
      key: one typed key. The noise is that of `Decoder.generate`: one key per prompt.
    """
    start = time.perf_counter()
    keys = jax.random.fold_in(key, index)[None]
    prompt = self._padded[index : index + 1], self._lengths[index : index + 1]
    state = jax.block_until_ready(self._init(self._params, *prompt, keys))
    seconds = time.perf_counter() - start
    yield self._frame(state, state, seconds)
    while not bool(self._done(state)[0]):
      before = state
      start = time.perf_counter()
      state = jax.block_until_ready(self._step(self._params, state))
      seconds += time.perf_counter() - start
      yield self._frame(before, state, seconds)

  def _frame(self, before: Any, state: Any, seconds: float) -> Frame:
    """What became of the canvas that the forward from `before` to `state` worked on."""
    (result,) = results_of(state.out, 1, seconds)
    canvas = self._method.canvas(before)
    first = int(canvas.start_B[0])
    old, new = (_span(s.out.tokens_BxC[0], canvas) for s in (before, state))
    drafts = self._method.last_drafts(state)
    shown = np.full(new.shape, -1) if drafts is None else np.asarray(drafts[0])
    return Frame(
      result=result,
      committed=max(0, first - len(result.prompt_tokens)) if canvas.size else len(result.tokens),
      canvas=new.tolist(),
      fresh=(old != new).tolist(),
      drafts=shown.tolist(),
      done=bool(state.out.done_B[0]),
    )


def _span(tokens_C: jax.Array, canvas: Canvas) -> np.ndarray:
  """The tokens of the canvas, -1 where there are none, so that it always has its size."""
  first = int(canvas.start_B[0])
  end = tokens_C.shape[0] if canvas.end_B is None else int(canvas.end_B[0])
  tokens = np.asarray(tokens_C[first : min(first + canvas.size, end)])
  return np.pad(tokens, (0, canvas.size - len(tokens)), constant_values=-1)
