"""FreeDave: drafts of several steps, all verified by the next forward (Algorithm 2).

One prediction gives d drafts: draft k is what the schedule would have revealed after k steps if
the prediction never changed. One forward looks at all of them, and each yields a target: itself
one step further on. Where a target equals a later draft that draft is what static decoding would
have reached, so the last draft of such a chain is accepted, and its prediction makes the next
drafts. The first draft needs no check. The text is that of `diffusion.make_sampler` with the same
schedule, bit for bit in exact arithmetic, drawn or greedy (`predict` says why).

Names: x-tilde_0 is the `prediction`, X_draft the `drafts`, X_target the `targets`, m + 1 counts the
accepted drafts, t_i the tokens themselves. Beyond the paper, as in the authors' public code:

* Decoding goes block by block. The last step of a block needs no forward, because what it reveals
  is known; with a counted schedule the forwards never outnumber those of static decoding.
* `eager` lets drafts run over the end of a block into the next ones. They are masked block by
  block there, so that what stands behind a block cannot change it (without that mask the method is
  not lossless), and the target of a finished block is committed too. A block that was finished
  ahead is checked for the early exit like any other (the public code forgets to).
* With `schedule.threshold` the drafts extend threshold decoding (dynamic sampling), and a target
  may equal a draft several steps on: the check goes from target to the furthest equal draft.

`carry` is ours: what a forward learned of an accepted draft is carried into the next block. Its
finished blocks enter the cache with the keys that were computed when it was verified, and its
predictions for the blocks behind them make the next drafts, so that no forward is spent to store
a block or to open one. Without drafts that are accepted this is one forward a step.

`frugal` goes further than the public code: no forward for a draft that is known to finish its
block, also with a threshold, or if that finishes the row. Then no setting costs more forwards than
the decoding it reproduces; without it a threshold may (to see that a block is full), and eager
acceptance may cost one more where a row exits early (it looked behind its last block).
"""

from __future__ import annotations

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp

from sbdjax.decode import base
from sbdjax.decode import canvas as cv
from sbdjax.decode.base import Generation, Sampler
from sbdjax.decode.canvas import Canvas, CanvasState, Window
from sbdjax.decode.diffusion import Model, count_forward, starter
from sbdjax.decode.forward import make_network
from sbdjax.decode.schedule import Prediction, Schedule
from sbdjax.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Drafting:
  """How far FreeDave looks ahead.

  Attributes:
    draft_steps: d, the most drafts of a forward.
    eager: drafts may run into later blocks.
    frugal: no forward whose outcome is known (the public code spends some).
    carry: no forward to store or to open a block (the public code spends both); needs `eager`.

  Raises:
    UsageError: no drafts, or `carry` without `eager`.
  """

  draft_steps: int
  eager: bool = False
  frugal: bool = False
  carry: bool = False

  def __post_init__(self):
    if self.draft_steps < 1:
      raise UsageError(f"draft_steps={self.draft_steps} must be at least 1")
    if self.carry and not self.eager:
      raise UsageError("carry works on the blocks that eager acceptance looks at: set eager=true")

  def num_blocks(self, block_size: int) -> int:
    """Blocks of the window."""
    return 1 + (-(-self.draft_steps // block_size) if self.eager else 0)


@flax.struct.dataclass
class FreeDaveState:
  """State of the FreeDave sampler.

  Attributes:
    canvas: the text so far.
    prediction: of the window, [B, W]; stands where the block in progress is opened.
    known_B: int32, for how many blocks of the window.
    tried_BxW: int32, tokens of the longest draft that the last forward verified; -1 where it had
      none. What became of them can be read off the canvas.
    tried_start_B: int32, first position of that window.
  """

  canvas: CanvasState
  prediction: Prediction
  known_B: jax.Array
  tried_BxW: jax.Array
  tried_start_B: jax.Array

  @property
  def out(self) -> Generation:
    return self.canvas.out


def count_drafts(state: CanvasState, drafted_BxW, accepted_BxW) -> CanvasState:
  """Adds the positions a row's longest draft proposed, and those that became text."""
  out = state.out
  return state.replace(
    out=out.replace(
      drafted_B=out.drafted_B + jnp.sum(drafted_BxW, axis=1),
      accepted_B=out.accepted_B + jnp.sum(accepted_BxW, axis=1),
    )
  )


def furthest(drafts_BxDxW: jax.Array, targets_BxDxW: jax.Array, count_B: jax.Array) -> jax.Array:
  """int32 [B]: index of the last accepted draft.

  From draft 0 on, jumps to the last of the first `count_B` drafts that equals the target of the
  present one, as long as there is a later one. With one reveal a step at a fixed count this is
  the prefix rule of Algorithm 2, lines 32 to 39.
  """
  index_D = jnp.arange(drafts_BxDxW.shape[1])
  equal_BxDxD = jnp.all(targets_BxDxW[:, :, None] == drafts_BxDxW[:, None], axis=-1)
  equal_BxDxD &= (index_D > index_D[:, None]) & (index_D < count_B[:, None, None])
  jump_BxD = jnp.max(jnp.where(equal_BxDxD, index_D, index_D[:, None]), axis=-1)
  for _ in range((len(index_D) - 1).bit_length()):  # each time twice as many jumps in one
    jump_BxD = jnp.take_along_axis(jump_BxD, jump_BxD, axis=1, mode="clip")
  return jump_BxD[:, 0]


def make_sampler(model: Model, canvas: Canvas, schedule: Schedule, drafting: Drafting) -> Sampler:
  """Algorithm 2 over `schedule`.

  Raises:
    UsageError: eager acceptance with a cache that freezes the later blocks.
  """
  k, num_blocks = canvas.block_size, drafting.num_blocks(canvas.block_size)
  width = num_blocks * k
  most = min(drafting.draft_steps, width)
  kept = most if drafting.carry else 1
  network = make_network(model.lm, canvas, model.forwarding, num_blocks, kept)
  predict = model.predict(canvas)
  begin = starter(canvas, network)
  index_N, block_W = jnp.arange(num_blocks), jnp.repeat(jnp.arange(num_blocks), k)

  def init(params, prompt_BxP, prompt_len_B, key) -> FreeDaveState:
    state = begin(params, prompt_BxP, prompt_len_B, key)
    shape = (prompt_BxP.shape[0], width)
    number = jnp.zeros(shape, jnp.float32)
    prediction = Prediction(jnp.zeros(shape, jnp.int32), number, number)
    none_BxW = jnp.full(shape, -1, jnp.int32)
    return FreeDaveState(state, prediction, 0 * state.start_B, none_BxW, state.start_B)

  def draft(state: FreeDaveState, window: Window, masked_BxW, drafting_B):
    """Drafts [B, D, W] and how many there are; of other rows one, their own tokens."""
    usable_BxW = masked_BxW & (block_W < state.known_B[:, None]) & drafting_B[:, None]
    step_BxW = schedule.steps(state.prediction, usable_BxW, window.maskable_BxN)
    reveal_BxDxW = step_BxW[:, None] <= jnp.arange(most)[:, None]
    tokens_BxDxW = state.prediction.token[:, None]
    drafts = jnp.where(reveal_BxDxW, tokens_BxDxW, window.tokens_BxW[:, None])
    count_B = jnp.minimum(jnp.sum(usable_BxW, axis=1), drafting.draft_steps)
    return drafts, jnp.maximum(count_B, 1)

  def verify(params, state: CanvasState, window: Window, drafts, count_B, storing_B):
    """One forward over `drafts`: the accepted one, its target and prediction, and the cache."""
    active_B = ~state.out.done_B
    logits, cache = network.run(params, state, window, drafts, storing_B & active_B, active_B)
    seen = predict(logits, state.key_B, window.position_BxW)
    masked = cv.masked(canvas, window, drafts)
    now = schedule.steps(seen, masked, window.maskable_BxN[:, None]) == 0
    targets = jnp.where(now, seen.token, drafts)
    best_B = furthest(drafts, targets, count_B)
    at = best_B[:, None, None]
    pick = lambda x: jnp.take_along_axis(x, at, axis=1, mode="clip")[:, 0]
    accepted_BxW = pick(drafts)
    if drafting.carry:
      closed_B = k * jnp.sum(leading(~open_blocks(window, accepted_BxW)), axis=1)
      length_B = jnp.minimum(state.start_B + closed_B, state.end_B)
      cache = network.keep(cache, state, best_B, length_B)
    return accepted_BxW, pick(targets), jax.tree.map(pick, seen), cache

  def open_blocks(window: Window, tokens_BxW):
    """bool [B, N]: the block has a mask."""
    return jnp.any(cv.masked(canvas, window, tokens_BxW).reshape(-1, num_blocks, k), axis=-1)

  def finish(prediction: Prediction, window: Window, start_B, end_B, storing_B):
    """The tokens after one more step where that takes no forward: it is the last of its block."""
    open_BxN = open_blocks(window, window.tokens_BxW)
    first_B = jnp.argmax(open_BxN, axis=1)
    here_BxN = open_BxN & (index_N == first_B[:, None])
    masked_BxW = cv.masked(canvas, window, window.tokens_BxW)
    now_BxW = schedule.steps(prediction, masked_BxW, window.maskable_BxN) == 0
    tokens_BxW = jnp.where(now_BxW, prediction.token, window.tokens_BxW)
    left_B = jnp.sum(masked_BxW & jnp.repeat(here_BxN, k, axis=1), axis=1)
    known_B = (left_B <= 1) | schedule.counted | drafting.frugal
    full_B = ~jnp.any(open_blocks(window, tokens_BxW) & here_BxN, axis=1)
    alone_B = (start_B + k * (first_B + 1) >= end_B) | (not drafting.eager)
    if drafting.frugal:
      alone_B |= jnp.any(cv.exits(canvas, window, tokens_BxW, num_blocks) & here_BxN, axis=1)
    # The block in progress; behind it only where nothing is left to be done for that one.
    now_B = (first_B == 0) | drafting.carry
    last_B = (left_B > 0) & known_B & full_B & alone_B & now_B & ~storing_B
    return jnp.where(last_B[:, None], tokens_BxW, window.tokens_BxW)

  def step(params, state: FreeDaveState) -> FreeDaveState:
    old = state.canvas
    window = cv.window(canvas, old, num_blocks)
    masked_BxW = cv.masked(canvas, window, window.tokens_BxW)
    storing_B = ~jnp.any(masked_BxW[:, :k], axis=1)
    drafting_B = old.opened_B & ~storing_B
    drafts, count_B = draft(state, window, masked_BxW, drafting_B)
    look = lambda drafts: verify(params, old, window, drafts, count_B, storing_B)
    accepted_BxW, target_BxW, prediction, cache = jax.lax.cond(
      jnp.any(drafting_B & ~old.out.done_B), look, lambda drafts: look(drafts[:, :1]), drafts
    )
    full_B = ~open_blocks(window, accepted_BxW)[:, 0]
    ahead_B = full_B & drafting_B & (drafting.eager and not drafting.carry)
    committed_BxW = jnp.where(ahead_B[:, None], target_BxW, accepted_BxW)
    committed = window._replace(tokens_BxW=committed_BxW)
    tokens_BxW = finish(prediction, committed, old.start_B, old.end_B, storing_B)

    width_B = network.width(old) * count_B
    new = count_forward(old, width_B).replace(opened_B=jnp.ones_like(storing_B))
    new = cv.commit(canvas, new, window, committed_BxW, tokens_BxW)
    # Where blocks are neither stored nor carried over, finished ones need no forward of their own.
    stays = network.stores and not drafting.carry
    most_B = jnp.where(storing_B, 1, 0 if stays else num_blocks)
    new = cv.close_blocks(canvas, new, window, tokens_BxW, most_B)
    known_B = jnp.full_like(count_B, num_blocks)
    if drafting.carry:
      shift_B = new.start_B - old.start_B
      known_B = num_blocks - jnp.minimum(shift_B // k, num_blocks)
      at_BxW = jnp.minimum(jnp.arange(width) + shift_B[:, None], width - 1)
      move = lambda x: jnp.take_along_axis(x, at_BxW, axis=1, mode="clip")
      prediction, new = jax.tree.map(move, prediction), new.replace(opened_B=known_B > 0)

    longest = jnp.take_along_axis(drafts, count_B[:, None, None] - 1, axis=1, mode="clip")[:, 0]
    tried_BxW = jnp.where(masked_BxW & (longest != canvas.mask_id), longest, -1)
    new = count_drafts(new, tried_BxW >= 0, (tried_BxW >= 0) & (tried_BxW == tokens_BxW))
    result = FreeDaveState(new.replace(cache=None), prediction, known_B, tried_BxW, old.start_B)
    result = base.keep_done(old.out.done_B, state.replace(canvas=old.replace(cache=None)), result)
    return result.replace(canvas=result.canvas.replace(cache=cache))

  return Sampler(init, step, lambda state: state.out.done_B)


def leading(flags_BxN: jax.Array) -> jax.Array:
  """bool: true up to the first false of each row."""
  return jnp.cumsum(~flags_BxN, axis=1) == 0
