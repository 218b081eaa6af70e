"""What Jacobi decoding drafts: where guesses stand behind the text, and what becomes of them.

A `Drafting` places the first guesses (by a `Fill`) and, after each forward, the next ones: the
predictions that were not final yet, and new guesses where there is no prediction. See `jacobi`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from sbdjax.decode.base import Generation
from sbdjax.errors import UsageError

# First drafts: (key_B, out, position_BxW) -> int32 tokens [B, W] for those positions.
Fill = Callable[[jax.Array, Generation, jax.Array], jax.Array]

_FILL_STREAM = 1 << 30  # guesses are keyed by their position plus this, apart from its noise


def _noise(key_B, position_BxW):
  """32 random bits a place."""
  keys = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))(key_B, _FILL_STREAM + position_BxW)
  return jax.vmap(jax.vmap(jax.random.bits))(keys)


def from_text() -> Fill:
  """Tokens of the prompt and of what is generated so far, each place drawn alike."""

  def fill(key_B, out: Generation, position_BxW):
    source_BxW = _noise(key_B, position_BxW) % out.length_B[:, None].astype(jnp.uint32)
    return jnp.take_along_axis(out.tokens_BxC, source_BxW.astype(jnp.int32), axis=1)

  return fill


def from_vocabulary(vocab_size: int, mask_id: int | None) -> Fill:
  """Tokens of the vocabulary, each alike, the mask token apart."""
  number = vocab_size - (mask_id is not None)

  def fill(key_B, out, position_BxW):
    del out
    token = (_noise(key_B, position_BxW) % jnp.uint32(number)).astype(jnp.int32)
    return token if mask_id is None else token + (token >= mask_id)

  return fill


def given(draft_BxG: jax.Array) -> Fill:
  """`draft_BxG[b, i]` for the i-th generated token; the last one for all behind it."""

  def fill(key_B, out, position_BxW):
    del key_B
    at_BxW = jnp.minimum(position_BxW - out.prompt_len_B[:, None], draft_BxG.shape[1] - 1)
    return jnp.take_along_axis(jnp.asarray(draft_BxG, jnp.int32), at_BxW, axis=1)

  return fill


@flax.struct.dataclass
class Plan:
  """Where drafts stand behind the text of each row.

  Attributes:
    end_B: int32, one past the last position the open (real-active) block predicts: its drafts
      stand before `end - 1`.
    blocks_B: int32, pseudo-active blocks behind it; 0 but for multi-block decoding.
    kept_BxP: int32, leading tokens of each pseudo-active block that stay as they are.
  """

  end_B: jax.Array
  blocks_B: jax.Array
  kept_BxP: jax.Array


class Moved(NamedTuple):
  """What a forward did.

  Attributes:
    before: the Generation it started from.
    after: with the accepted tokens; what stands behind its `length_B` are old drafts.
    chosen_BxT: int32, what the winning chain predicts for position `before.length + t`.
    plain_BxT: what the chain without recycled drafts predicts there.
  """

  before: Generation
  after: Generation
  chosen_BxT: jax.Array
  plain_BxT: jax.Array


class Drafting(NamedTuple):
  """How drafts are made.

  Attributes:
    columns: T, tokens of a chain (static).
    start: (key_B, out) -> (tokens_BxC, plan): the first drafts behind the prompt.
    verified: (plan) -> int32 [B]: drafts before this position may become text.
    reach: (plan) -> int32 [B]: drafts stand before this position, all of them.
    advance: (key_B, plan, moved) -> (tokens_BxC, plan): the drafts for the next forward.
  """

  columns: int
  start: Callable[..., tuple[jax.Array, Plan]]
  verified: Callable[[Plan], jax.Array]
  reach: Callable[[Plan], jax.Array]
  advance: Callable[..., tuple[jax.Array, Plan]]


def write(tokens_BxC, position_BxW, value_BxW, where_BxW) -> jax.Array:
  """Puts values where `where` says; positions outside the buffer are dropped."""
  rows_Bx1 = jnp.arange(tokens_BxC.shape[0])[:, None]
  position_BxW = jnp.where(where_BxW, position_BxW, tokens_BxC.shape[1])
  return tokens_BxC.at[rows_Bx1, position_BxW].set(value_BxW, mode="drop")


def read(values_BxT, index_BxW) -> jax.Array:
  """`values` at `index`, clipped to the ends."""
  index_BxW = jnp.clip(index_BxW, 0, values_BxT.shape[1] - 1)
  return jnp.take_along_axis(values_BxT, index_BxW, axis=1)


def open_block(fill: Fill, n: int, key_B, out: Generation, known_end_B, moved=None):
  """The drafts of n predictions behind the text: (tokens_BxC, end_B).

  Positions before `known_end` get what `moved` has chosen for them, the others what `fill` says.
  """
  position_BxW = out.length_B[:, None] + jnp.arange(n - 1)
  value_BxW = fill(key_B, out, position_BxW)
  if moved is not None:
    known_BxW = read(moved.chosen_BxT, position_BxW - moved.before.length_B[:, None])
    value_BxW = jnp.where(position_BxW < known_end_B[:, None], known_BxW, value_BxW)
  every = jnp.ones_like(position_BxW, bool)
  return write(out.tokens_BxC, position_BxW, value_BxW, every), out.length_B + n


def _one_block(n: int, fill: Fill, next_end: Callable) -> Drafting:
  if n < 1:
    raise UsageError(f"block_size={n} must be at least 1")

  def start(key_B, out: Generation):
    tokens, end_B = open_block(fill, n, key_B, out, None)
    zero_B = jnp.zeros_like(end_B)
    return tokens, Plan(end_B, zero_B, jnp.zeros((zero_B.shape[0], 0), jnp.int32))

  def advance(key_B, plan: Plan, moved: Moved):
    tokens, new_end_B = open_block(fill, n, key_B, moved.after, plan.end_B, moved)
    return tokens, plan.replace(end_B=next_end(moved.after.length_B, plan.end_B, new_end_B))

  before_end = lambda plan: plan.end_B - 1
  return Drafting(n, start, before_end, before_end, advance)


def blocks(n: int, fill: Fill) -> Drafting:
  """Blocks of n tokens one after the other, the next one opened when all of one are final."""
  return _one_block(n, fill, lambda length, end, new: jnp.where(length < end, end, new))


def window(n: int, fill: Fill) -> Drafting:
  """The running window (section 4.2): n predictions in every forward, new drafts at the tail.

  The authors' engine takes them from the vocabulary (`from_vocabulary`).
  """
  return _one_block(n, fill, lambda length, end, new: new)
