"""What Jacobi decoding drafts: where drafts stand after the text, and where the first come from.

Drafts are tokens of `out.tokens_BxC` after the text. The first ones of a block come from a
`DraftInit`; after each forward the next ones are the predictions that are not final yet. See
`jacobi`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from sbdjax import pytree
from sbdjax.decode import base
from sbdjax.decode.base import Generation
from sbdjax.decode.method import Part
from sbdjax.nn.config import TransformerConfig

# First drafts are keyed by their position plus this, apart from the noise of that position.
DRAFT_STREAM = 1 << 30

# A `DraftInit` for one model: (key_B, out, position_BxW) -> int32 tokens [B, W].
FirstDrafts = Callable[[jax.Array, Generation, jax.Array], jax.Array]


class DraftInit(Part):
  """Base of the sources of first drafts."""

  kind: ClassVar[str] = "draft_init"

  def __call__(
    self, model: TransformerConfig, key_B: jax.Array, out: Generation, position_BxW: jax.Array
  ) -> jax.Array:
    """First drafts for some positions.

    Args:
      model: shape of the model that decodes: its vocabulary and mask token.
      key_B: one typed key per row.
      out: the text so far.
      position_BxW: int32.

    Returns:
      int32 [B, W], never the mask token.
    """
    raise NotImplementedError


@pytree.dataclass
class FromText(DraftInit):
  """Tokens of the prompt and of what is generated so far, each place equally likely."""

  def __call__(
    self, model: TransformerConfig, key_B: jax.Array, out: Generation, position_BxW: jax.Array
  ) -> jax.Array:
    source_BxW = random_bits(key_B, position_BxW) % out.length_B[:, None].astype(jnp.uint32)
    return jnp.take_along_axis(out.tokens_BxC, source_BxW.astype(jnp.int32), axis=1)


@pytree.dataclass
class FromVocabulary(DraftInit):
  """Tokens of the vocabulary, each equally likely but for the mask token."""

  def __call__(
    self, model: TransformerConfig, key_B: jax.Array, out: Generation, position_BxW: jax.Array
  ) -> jax.Array:
    mask_id = model.mask_id
    number = model.vocab_size - (mask_id is not None)
    token = (random_bits(key_B, position_BxW) % jnp.uint32(number)).astype(jnp.int32)
    return token if mask_id is None else token + (token >= mask_id)


@pytree.dataclass
class Given(DraftInit):
  """Known drafts, to compare with other code.

  Attributes:
    draft_BxG: int32, `draft_BxG[b, i]` for the i-th generated token; the last one for all after it.
  """

  draft_BxG: jax.Array

  def __call__(
    self, model: TransformerConfig, key_B: jax.Array, out: Generation, position_BxW: jax.Array
  ) -> jax.Array:
    at_BxW = jnp.minimum(position_BxW - out.prompt_len_B[:, None], self.draft_BxG.shape[1] - 1)
    return jnp.take_along_axis(jnp.asarray(self.draft_BxG, jnp.int32), at_BxW, axis=1)


def random_bits(key_B: jax.Array, position_BxW: jax.Array) -> jax.Array:
  """uint32 [B, W]: 32 random bits per place."""
  keys_BxW = base.position_keys(key_B, DRAFT_STREAM + position_BxW)
  return jax.vmap(jax.vmap(jax.random.bits))(keys_BxW)


@pytree.dataclass
class JacobiBlocks(pytree.Struct):
  """Where drafts stand after the text of each row.

  Attributes:
    end_B: int32, one past the last position that the open (real-active) block predicts: its drafts
      stand before `end - 1`.
    blocks_B: int32, pseudo-active blocks after it; 0 but for multi-block decoding.
    kept_BxP: int32, leading tokens of each pseudo-active block that stay as they are.
  """

  end_B: jax.Array
  blocks_B: jax.Array
  kept_BxP: jax.Array

  def drafts_end(self, n: int) -> jax.Array:
    """int32 [B]: all drafts stand before this position; n tokens are one block."""
    return self.end_B - 1 + n * self.blocks_B


class ForwardOutcome(NamedTuple):
  """What one forward did.

  Attributes:
    before: the Generation it started from.
    after: with the accepted tokens; what stands after its `length_B` are old drafts.
    chosen_BxT: int32, what the winning chain predicts for position `before.length + t`.
    plain_BxT: what the chain without recycled drafts predicts there.
  """

  before: Generation
  after: Generation
  chosen_BxT: jax.Array
  plain_BxT: jax.Array

  def chosen_for(self, position_BxW: jax.Array) -> jax.Array:
    """What the winning chain predicts for these positions, clipped to those it predicts."""
    return read(self.chosen_BxT, position_BxW - self.before.length_B[:, None])


def read(values_BxT: jax.Array, index_BxW: jax.Array) -> jax.Array:
  """`values` at `index`, clipped to the ends."""
  index_BxW = jnp.clip(index_BxW, 0, values_BxT.shape[1] - 1)
  return jnp.take_along_axis(values_BxT, index_BxW, axis=1)


def first_block(
  first: FirstDrafts, n: int, key_B: jax.Array, out: Generation, num_pseudo: int = 0
) -> tuple[jax.Array, JacobiBlocks]:
  """tokens_BxC with the first drafts of an open block of n predictions after the prompt."""
  position_BxW = out.length_B[:, None] + jnp.arange(n - 1)
  everywhere = jnp.ones_like(position_BxW, bool)
  drafts_BxW = first(key_B, out, position_BxW)
  tokens_BxC = base.put(out.tokens_BxC, position_BxW, drafts_BxW, everywhere)
  zero_B = jnp.zeros_like(out.length_B)
  kept_BxP = jnp.zeros((zero_B.shape[0], num_pseudo), jnp.int32)
  return tokens_BxC, JacobiBlocks(out.length_B + n, zero_B, kept_BxP)


def next_drafts(
  first: FirstDrafts, n: int, key_B: jax.Array, known_end_B: jax.Array, outcome: ForwardOutcome
) -> jax.Array:
  """tokens_BxC with drafts of n predictions after the text.

  Positions before `known_end` hold what the forward chose for them, the others first drafts.
  """
  out = outcome.after
  position_BxW = out.length_B[:, None] + jnp.arange(n - 1)
  drafts_BxW = jnp.where(
    position_BxW < known_end_B[:, None],
    outcome.chosen_for(position_BxW),
    first(key_B, out, position_BxW),
  )
  return base.put(out.tokens_BxC, position_BxW, drafts_BxW, jnp.ones_like(position_BxW, bool))
