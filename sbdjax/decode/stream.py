"""Decoding step by step: the same `step` as the compiled loop, one forward per frame."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from sbdjax.decode.base import Generation, Limits
from sbdjax.decode.generate import Result, pad_prompts, padded_limits, padded_width, results_of
from sbdjax.decode.method import Canvas, Method
from sbdjax.decode.programs import Shared, shared


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

  Programs serve other prompts, limits and numbers of the method as those of `Decoder` do.

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
    using: Shared | None = None,
    width: int = 0,
  ):
    """Compiles for prompts as long as the longest of `prompts`, and prepares `params`.

    Args:
      using: programs and parameters shared with others of the same model; None: its own.
      width: tokens that prompts are padded to at least, so that longer ones find the same programs.
    """
    programs, prepared = using or shared(lm)
    width = max(width, padded_width(method, lm, limits, prompts))
    self._lm, self._method = lm, method
    self._padded, self._lengths = pad_prompts(prompts, width, method.any_order)
    self._settings = method, prepared(method, params, 1), padded_limits(method, lm, limits, width)
    self._done = method.sampler(lm, limits).done
    self.compile_seconds = 0.0
    args = (*self._settings, *self._row(0, jax.random.key(0)))
    self._init, self._step = programs.find(args, lambda: self._compile(args), kind="stream")

  def _row(self, index: int, key: jax.Array) -> tuple[Any, ...]:
    """What the prompt's program is given of prompt `index`."""
    keys = jax.random.fold_in(key, index)[None]
    return self._padded[index : index + 1], self._lengths[index : index + 1], keys

  def _compile(self, args: tuple) -> tuple[Callable[..., Any], Callable[..., Any]]:
    lm = self._lm

    def init(method, params, limits, *prompt):
      return method.sampler(lm, limits).init(params, *prompt)

    def step(method, params, limits, state):
      return method.sampler(lm, limits).step(params, state)

    start = time.perf_counter()
    lowered = jax.jit(init).lower(*args)
    state = lowered.out_info
    programs = lowered.compile(), jax.jit(step).lower(*args[:3], state).compile()
    self.compile_seconds += time.perf_counter() - start
    return programs

  def frames(self, index: int, key: jax.Array) -> Iterator[Frame]:
    """Decodes prompt `index`: a frame after the prompt's forward, and one after each further one.

    Args:
      key: one typed key. The noise is that of `Decoder.generate`: one key per prompt.
    """
    row = self._row(index, key)
    start = time.perf_counter()
    state = jax.block_until_ready(self._init(*self._settings, *row))
    seconds = time.perf_counter() - start
    yield self._frame(state, state, seconds)
    while not bool(self._done(state)[0]):
      before = state
      start = time.perf_counter()
      state = jax.block_until_ready(self._step(*self._settings, state))
      seconds += time.perf_counter() - start
      yield self._frame(before, state, seconds)

  def _frame(self, before: Any, state: Any, seconds: float) -> Frame:
    """What became of the canvas that the forward from `before` to `state` worked on."""
    (result,) = results_of(state.out, 1, seconds, batch_size=1)
    canvas = self._method.canvas(before)
    first = int(canvas.start_B[0])
    old, new = (_span(s.out, canvas) for s in (before, state))
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


def _span(out: Generation, canvas: Canvas) -> np.ndarray:
  """The tokens of the canvas, -1 where there are none, so that it always has its size."""
  tokens_C = np.asarray(out.tokens_BxC)[0]  # on the host: nothing is compiled to cut it
  first = int(canvas.start_B[0])
  end = tokens_C.shape[0] if canvas.end_B is None else int(canvas.end_B[0])
  tokens = tokens_C[first : min(first + canvas.size, end)]
  return np.pad(tokens, (0, canvas.size - len(tokens)), constant_values=-1)
