"""Gives a next-token model the mask token that SBD and masked diffusion need."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp

from sbdjax.data.bpe_tokenizer import LibraryTokenizer
from sbdjax.data.tokenizers import Tokenizer
from sbdjax.errors import UsageError
from sbdjax.nn.transformer import TransformerConfig

# Leaves with one row a token.
TABLES = ("embedding", "head", "head_bias")
# Tokens that makers of a vocabulary set aside: Llama 3, Qwen, Gemma, Mistral, Phi.
_RESERVED = re.compile(
  r"<\|?(reserved_special_token_\d+|reserved_\d+|extra_\d+|extra_id_\d+|unused_?\d+|SPECIAL_\d+"
  r"|dummy_\d+)\|?>|\[(control_\d+|unused\d+)\]"
)


def add_mask_token(
  config: TransformerConfig, params: dict, *, token_id: int | None = None, multiple_of: int = 1
) -> tuple[TransformerConfig, dict]:
  """Names a token the mask token: `token_id`, or a new row that is the mean of the others.

  A model that has a mask token is returned as it is. Because `LM.logits` leaves the mask token
  out of every distribution, a new row changes no next-token probability.

  Args:
    token_id: a reserved token to use (see `find_reserved`); its row stays as it is.
    multiple_of: the vocabulary grows to a multiple of this, so that it can be cut evenly between
      devices; the rows that stand for no token (`config.unused_rows`) are never predicted.

  Raises:
    UsageError: `token_id` outside the vocabulary, or multiple_of < 1.
  """
  if multiple_of < 1:
    raise UsageError(
      f"the vocabulary cannot be padded to a multiple of {multiple_of}: give 1 or more"
    )
  if config.mask_id is not None:
    return config, params
  used = config.vocab_size - config.unused_rows
  if token_id is not None:
    return dataclasses.replace(config, mask_id=token_id), params
  rows = -(-max(used + 1, config.vocab_size) // multiple_of) * multiple_of

  def extend(table: Any) -> jax.Array:
    table = jnp.asarray(table)[:used]
    mean = jnp.mean(table.astype(jnp.float32), axis=0, keepdims=True).astype(table.dtype)
    return jnp.concatenate([table, jnp.repeat(mean, rows - used, axis=0)])

  tables = {name: extend(params[name]) for name in TABLES if name in params}
  config = dataclasses.replace(config, vocab_size=rows, mask_id=used, unused_rows=rows - used - 1)
  return config, {**params, **tables}


def find_reserved(config: TransformerConfig, tokenizer: Tokenizer) -> int | None:
  """A token no text contains, for `add_mask_token`: the vocabulary's own mask token, else the first
  embedding row beyond the tokenizer's vocabulary, else the first token with a reserved name.

  Returns:
    Its id, or None where there is no such token.
  """
  if tokenizer.mask_id is not None:
    return tokenizer.mask_id
  if tokenizer.vocab_size < config.vocab_size - config.unused_rows:
    return tokenizer.vocab_size
  return min(reserved(tokenizer), default=None)


def reserved(tokenizer: Tokenizer) -> set[int]:
  """Tokens of a vocabulary that its makers named as set aside."""
  if not isinstance(tokenizer, LibraryTokenizer):
    return set()
  return {i for text, i in tokenizer.added_tokens().items() if _RESERVED.fullmatch(text)}
