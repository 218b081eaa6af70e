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

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sbdjax import pytree
from sbdjax.decode.method import Part

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


class RemaskingSchedule(Part):
  """Base of remasking schedules.

  Attributes:
    counted: the number of positions of a step does not depend on the prediction.
  """

  kind: ClassVar[str] = "schedule"
  counted: ClassVar[bool] = False

  def __call__(
    self, prediction: Prediction, masked_xW: jax.Array, maskable_xN: jax.Array
  ) -> jax.Array:
    """The step that reveals each position if the prediction never changes.

    Args:
      prediction: of a window, [..., W].
      masked_xW: bool, which of its positions are masks.
      maskable_xN: int32, for each of its N blocks of W / N positions, how many of them were masks
        before its first step.

    Returns:
      int32 [..., W], from 0 on; NEVER where not masked.
    """
    raise NotImplementedError


@pytree.dataclass
class StaticSteps(RemaskingSchedule):
  """A block in a fixed number of steps, as even as can be, the remainder to the earliest steps.

  The split is over the positions that were masked when the block began (LLaDA's, which for a
  block after part of a prompt differs from a split of the block size). With fewer positions than
  steps, one per step.

  Attributes:
    steps_per_block: steps of a block; 0: one per token.

  Raises:
    UsageError: a negative number of steps.
  """

  counted: ClassVar[bool] = True
  steps_per_block: int = 0

  def __post_init__(self) -> None:
    n = self.steps_per_block
    _check_number("steps_per_block", n)
    pytree.check(n >= 0, f"steps_per_block={n} must not be negative")

  def __call__(
    self, prediction: Prediction, masked_xW: jax.Array, maskable_xN: jax.Array
  ) -> jax.Array:
    num_blocks = maskable_xN.shape[-1]
    block_W = _block_of(masked_xW.shape[-1], num_blocks)
    left_xN = jnp.sum(masked_xW.reshape(*masked_xW.shape[:-1], num_blocks, -1), axis=-1)
    steps = jnp.asarray(self.steps_per_block)
    steps_xN = jnp.where(steps > 0, steps, maskable_xN)
    limit_xN = jnp.maximum(jnp.minimum(steps_xN, maskable_xN), 1)
    base_xN = _div(maskable_xN, limit_xN)
    extra_xN = maskable_xN - base_xN * limit_xN
    done_xN = maskable_xN - left_xN
    now_xN = _step_of(done_xN, base_xN, extra_xN)
    remaining_xN = jnp.where(left_xN > 0, limit_xN - now_xN, 0)
    start_xN = _before(remaining_xN) - now_xN
    rank_xW = ranks(prediction.score, masked_xW, num_blocks)
    at = lambda x_xN: jnp.take(x_xN, block_W, axis=-1)
    nth_xW = rank_xW - at(_before(left_xN)) + at(done_xN)
    step_xW = at(start_xN) + _step_of(nth_xW, at(base_xN), at(extra_xN))
    return jnp.where(masked_xW, step_xW, NEVER)


@pytree.dataclass
class Threshold(RemaskingSchedule):
  """Step 0: the earliest block's positions that are sure enough, or its first by score.

  After it one position per step, by block and score: FreeDave's drafts over threshold decoding
  extend what the threshold reveals one by one.

  Attributes:
    threshold: tau, the smallest confidence that is sure enough.

  Raises:
    UsageError: a negative threshold.
  """

  threshold: float = 0.9

  def __post_init__(self) -> None:
    tau = self.threshold
    _check_number("threshold", tau)
    pytree.check(tau >= 0, f"threshold={tau} must not be negative")

  def __call__(
    self, prediction: Prediction, masked_xW: jax.Array, maskable_xN: jax.Array
  ) -> jax.Array:
    num_blocks = maskable_xN.shape[-1]
    block_W = _block_of(masked_xW.shape[-1], num_blocks)
    first_x1 = jnp.min(jnp.where(masked_xW, block_W, num_blocks), axis=-1, keepdims=True)
    sure_xW = masked_xW & (block_W == first_x1) & (prediction.confidence >= self.threshold)
    top_xW = masked_xW & (ranks(prediction.score, masked_xW, num_blocks) == 0)
    now_xW = jnp.where(jnp.any(sure_xW, axis=-1, keepdims=True), sure_xW, top_xW)
    later_xW = masked_xW & ~now_xW
    step_xW = jnp.where(now_xW, 0, 1 + ranks(prediction.score, later_xW, num_blocks))
    return jnp.where(masked_xW, step_xW, NEVER)


def _check_number(name: str, value: Any) -> None:
  """Refuses one value per row [B], which would be read as one for each position of a window.

  Arrays that stand over whole rows, [B, 1] or [B, 1, 1] like what they meet, are taken.

  Raises:
    UsageError: an array of one axis.
  """
  shape = np.shape(value)
  pytree.check(
    len(shape) != 1, f"{name} has the shape {shape}: give one number, which holds for all rows"
  )


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


def _step_of(nth: jax.Array, base: jax.Array, extra: jax.Array) -> jax.Array:
  """Step of its block that reveals the nth position: `base` per step, one more in `extra` steps."""
  long = extra * (base + 1)
  after = extra + _div(jnp.maximum(nth - long, 0), jnp.maximum(base, 1))
  return jnp.where(nth < long, _div(jnp.maximum(nth, 0), base + 1), after)


def _block_of(width: int, num_blocks: int) -> jax.Array:
  return jnp.repeat(jnp.arange(num_blocks, dtype=jnp.int32), width // num_blocks)


def _div(a: jax.Array, b: jax.Array) -> jax.Array:
  """a // b of numbers that are not negative, without the code for signs."""
  return jax.lax.div(*jnp.broadcast_arrays(a, b))


def _before(count_xN: jax.Array) -> jax.Array:
  """Sum of the entries before each one."""
  return jnp.cumsum(count_xN, axis=-1) - count_xN
