"""Remasking schedules: at which step of the static process each masked position is revealed.

The paper's scheduler g(prediction, t, s) says which positions become tokens between two time
levels (FreeDave, section 3.1). Here a schedule answers for all s at once: from one prediction it
gives every masked position the number of steps, counted from now, after which it would be revealed
if no prediction ever changed. Step 0 is what plain decoding reveals now; draft k of FreeDave is
everything below k. Positions of an earlier block always come before those of a later one.

Everything is a function of the tokens alone (how many positions of a block are still masked tells
how many steps it has had), so no step counter has to follow a draft.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

# Later than any step: what is not masked.
NEVER = jnp.iinfo(jnp.int32).max


class Prediction(NamedTuple):
  """What a forward says about each position of a window, [..., W].

  Attributes:
    token: int32, the token it would become.
    confidence: float32, probability of the most probable token, of the raw softmax.
    score: float32, positions of a block are revealed by descending score.
  """

  token: jax.Array
  confidence: jax.Array
  score: jax.Array


class Schedule(NamedTuple):
  """A remasking schedule.

  Attributes:
    steps: (prediction, masked [..., W], maskable [..., N]) -> int32 [..., W], NEVER where not
      masked. A window is N blocks of W / N positions; `maskable` is how many positions of each
      block were masked before its first step.
    counted: the number of positions of a step does not depend on the prediction.
  """

  steps: Callable[[Prediction, jax.Array, jax.Array], jax.Array]
  counted: bool


def ranks(score_xW: jax.Array, masked_xW: jax.Array, num_blocks: int) -> jax.Array:
  """int32 [..., W]: how many masked positions come before each one.

  They come by block, then by descending score, leftmost first on ties. Counting pairs instead of
  sorting: windows are short, and a sort in every branch is most of what there is to compile.
  """
  index_W = jnp.arange(score_xW.shape[-1])
  block_W = _block_of(score_xW.shape[-1], num_blocks)
  one, other = score_xW[..., :, None], score_xW[..., None, :]
  ahead = (other > one) | ((other == one) & (index_W < index_W[:, None]))
  earlier = block_W < block_W[:, None]
  same = block_W == block_W[:, None]
  first = (earlier | (same & ahead)) & masked_xW[..., None, :]
  return jnp.sum(first, axis=-1, dtype=jnp.int32)


def _block_of(width: int, num_blocks: int) -> jax.Array:
  return jnp.repeat(jnp.arange(num_blocks, dtype=jnp.int32), width // num_blocks)


def _div(a: jax.Array, b: jax.Array) -> jax.Array:
  """a // b of numbers that are not negative, without the code for signs."""
  return jax.lax.div(*jnp.broadcast_arrays(a, b))


def _before(count_xN: jax.Array) -> jax.Array:
  """Sum of the entries before each one."""
  return jnp.cumsum(count_xN, axis=-1) - count_xN


def static(steps_per_block) -> Schedule:
  """A block in `steps_per_block` steps, as even as can be, the remainder to the earliest steps.

  The split is over the positions that were masked when the block began (LLaDA's, which for a
  block behind part of a prompt differs from a split of the block size). With fewer positions than
  steps, one a step. `steps_per_block` may be traced.
  """

  def steps(prediction, masked, maskable):
    num_blocks = maskable.shape[-1]
    block_W = _block_of(masked.shape[-1], num_blocks)
    left_xN = jnp.sum(masked.reshape(*masked.shape[:-1], num_blocks, -1), axis=-1)
    limit_xN = jnp.maximum(jnp.minimum(steps_per_block, maskable), 1)
    base_xN = _div(maskable, limit_xN)
    extra_xN = maskable - base_xN * limit_xN

    def step_of(u, base, extra):
      """Step of its block in which the u-th position is revealed: `extra` steps have one more."""
      long = extra * (base + 1)
      behind = extra + _div(jnp.maximum(u - long, 0), jnp.maximum(base, 1))
      return jnp.where(u < long, _div(jnp.maximum(u, 0), base + 1), behind)

    done_xN = maskable - left_xN
    now_xN = step_of(done_xN, base_xN, extra_xN)
    remaining_xN = jnp.where(left_xN > 0, limit_xN - now_xN, 0)
    start_xN = _before(remaining_xN) - now_xN
    rank_xW = ranks(prediction.score, masked, num_blocks)
    at = lambda x_xN: jnp.take(x_xN, block_W, axis=-1)
    u_xW = rank_xW - at(_before(left_xN)) + at(done_xN)
    step_xW = at(start_xN) + step_of(u_xW, at(base_xN), at(extra_xN))
    return jnp.where(masked, step_xW, NEVER)

  return Schedule(steps, counted=True)


def threshold(tau) -> Schedule:
  """Step 0: the earliest block's positions with confidence >= `tau`, or its first by score.

  After it one position a step, by block and score: FreeDave's drafts over threshold decoding
  extend what the threshold reveals one by one. `tau` may be traced.
  """

  def steps(prediction, masked, maskable):
    num_blocks = maskable.shape[-1]
    block_W = _block_of(masked.shape[-1], num_blocks)
    first_x1 = jnp.min(jnp.where(masked, block_W, num_blocks), axis=-1, keepdims=True)
    sure_xW = masked & (block_W == first_x1) & (prediction.confidence >= tau)
    top_xW = masked & (ranks(prediction.score, masked, num_blocks) == 0)
    now_xW = jnp.where(jnp.any(sure_xW, axis=-1, keepdims=True), sure_xW, top_xW)
    later_xW = masked & ~now_xW
    step_xW = jnp.where(now_xW, 0, 1 + ranks(prediction.score, later_xW, num_blocks))
    return jnp.where(masked, step_xW, NEVER)

  return Schedule(steps, counted=False)
