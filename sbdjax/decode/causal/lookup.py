"""Drafts looked up in the row's own text: prompt look-up decoding (Saxena 2023).

Answers repeat their questions, code repeats itself: where the last tokens of a text have stood
before, what followed them there often follows again. Such drafts cost no forward and no masks;
verified SBD verifies them beside the masked half's drafts, see `verified_sbd`.

Source: A. Saxena, "Prompt Lookup Decoding" (2023); `PromptLookupCandidateGenerator` of the package
`transformers`, which takes the earliest place and stops at the end of the text.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from sbdjax import pytree
from sbdjax.decode.method import Part


class Found(NamedTuple):
  """Drafts of the tokens after the text of each row.

  Attributes:
    token_BxR: int32, draft of the j-th token after it.
    count_B: int32, how many there are; 0: nothing was found.
  """

  token_BxR: jax.Array
  count_B: jax.Array

  def first(self, size: int) -> Found:
    """The first `size` drafts of each row."""
    return Found(self.token_BxR[:, :size], jnp.minimum(self.count_B, size))


class Lookup(Part):
  """Base of the ways to find drafts in a text.

  Attributes:
    width: R, drafts at most; 0: there never are any.
  """

  kind: ClassVar[str] = "lookup"

  @property
  def width(self) -> int:
    raise NotImplementedError

  @property
  def sizes(self) -> tuple[int, ...]:
    """Numbers of drafts that a forward is compiled for, ascending up to `width`: the smallest that
    holds the drafts of all rows is run."""
    return (self.width,) if self.width else ()

  def check(self, vocab_size: int) -> None:
    """Raises UsageError where its drafts are not for a model with so many tokens."""
    del vocab_size

  def __call__(self, tokens_BxC: jax.Array, length_B: jax.Array) -> Found:
    """Drafts of the tokens after each text; a row's depend on its own text alone.

    Args:
      tokens_BxC: int32, the texts; from `length` on they are scratch.
      length_B: int32, tokens of each text, at least 1.
    """
    raise NotImplementedError


@pytree.dataclass
class NoLookup(Lookup):
  """Nothing is looked up."""

  @property
  def width(self) -> int:
    return 0


@pytree.dataclass
class TextLookup(Lookup):
  """What followed the last tokens where they stood before, in the prompt or in what came after it.

  The longest match counts, of equally long ones the latest. Where only p tokens follow it, the text
  may be in a loop of p tokens, and draft j + p is draft j. (Ours: others have p drafts there.)

  Attributes:
    lookup_tokens: R, drafts.
    longest_match: how many of the last tokens are looked for first.
    shortest_match: with fewer of them than this nothing is drafted.

  Raises:
    UsageError: no drafts, or not 1 <= shortest_match <= longest_match.
  """

  lookup_tokens: int = pytree.static(default=6)
  longest_match: int = pytree.static(default=3)
  shortest_match: int = pytree.static(default=2)

  def __post_init__(self) -> None:
    pytree.check(
      self.lookup_tokens >= 1,
      f"lookup_tokens={self.lookup_tokens} must be at least 1 (lookup=none looks nothing up)",
    )
    pytree.check(
      1 <= self.shortest_match <= self.longest_match,
      f"shortest_match={self.shortest_match} must be in 1..longest_match={self.longest_match}",
    )

  @property
  def width(self) -> int:
    return self.lookup_tokens

  def __call__(self, tokens_BxC: jax.Array, length_B: jax.Array) -> Found:
    matched_BxC = match_lengths(tokens_BxC, length_B, self.longest_match)
    found_B = jnp.max(matched_BxC, axis=1) >= self.shortest_match
    token_BxR = repeated(tokens_BxC, length_B, matched_BxC, self.width)
    return Found(token_BxR, jnp.where(found_B, self.width, 0))


def repeated(
  tokens_BxC: jax.Array, length_B: jax.Array, matched_BxC: jax.Array, width: int
) -> jax.Array:
  """int32 [B, width]: what follows the longest match, of equally long ones the latest.

  Args:
    matched_BxC: as of `match_lengths`; where it is 0 everywhere, what is returned means nothing.
  """
  best_Bx1 = jnp.max(matched_BxC, axis=1, keepdims=True)
  index_C = jnp.arange(tokens_BxC.shape[1])
  next_Bx1 = jnp.max(jnp.where(matched_BxC == best_Bx1, index_C, 0), axis=1, keepdims=True)
  loop_Bx1 = jnp.maximum(length_B[:, None] - next_Bx1, 1)
  at_BxR = next_Bx1 + jnp.arange(width) % loop_Bx1
  return jnp.take_along_axis(tokens_BxC, at_BxR, axis=1, mode="clip")


def match_lengths(tokens_BxC: jax.Array, length_B: jax.Array, longest: int) -> jax.Array:
  """int32 [B, C]: how many tokens before place i are those at the end of the text, up to `longest`.

  0 at places outside the text.
  """
  capacity = tokens_BxC.shape[1]
  padded = jnp.pad(tokens_BxC, ((0, 0), (longest, 0)), constant_values=-1)
  matched_BxC = jnp.zeros_like(tokens_BxC)
  still_BxC = jnp.arange(capacity) < length_B[:, None]
  for back in range(1, longest + 1):
    last_Bx1 = jnp.take_along_axis(tokens_BxC, length_B[:, None] - back, axis=1, mode="clip")
    still_BxC &= padded[:, longest - back : longest - back + capacity] == last_Bx1
    matched_BxC += still_BxC
  return matched_BxC
