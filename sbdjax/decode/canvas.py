"""A row of tokens and masks, filled in any order: what such samplers share.

A prompt may hold mask tokens, anywhere: they are filled like the ones behind it, and the network
sees the whole row at once. A prompt may also be empty.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from sbdjax.decode import base
from sbdjax.decode.base import Generation, Limits


def start(
  prompt_BxP: jax.Array, prompt_len_B: jax.Array, limits: Limits, mask_id: int
) -> tuple[Generation, jax.Array]:
  """The row of each prompt, and one past its end, int32 [B]. Rows without masks are done."""
  capacity = prompt_BxP.shape[1] + limits.max_tokens
  out = base.start(prompt_BxP, prompt_len_B, capacity, mask_id)
  end_B = out.prompt_len_B + limits.of_rows(prompt_BxP.shape[0])
  return measured(out.replace(text_end_B=out.length_B), end_B, limits, mask_id), end_B


def masked(tokens_BxC: jax.Array, end_B: jax.Array, mask_id: int) -> jax.Array:
  """bool [B, C]: masks before the end of a row."""
  return (tokens_BxC == mask_id) & (jnp.arange(tokens_BxC.shape[1]) < end_B[:, None])


def reveal(out: Generation, tokens_BxC: jax.Array, reveal_BxC: jax.Array) -> Generation:
  """One more forward, which put `tokens` where `reveal` says."""
  return out.replace(
    tokens_BxC=jnp.where(reveal_BxC, tokens_BxC, out.tokens_BxC),
    reveal_step_BxC=jnp.where(reveal_BxC, out.nfe_B[:, None], out.reveal_step_BxC),
    nfe_B=out.nfe_B + 1,
  )


def measured(out: Generation, end_B: jax.Array, limits: Limits, mask_id: int) -> Generation:
  """Fills in how far the text behind the prompt is final, its first EOS, and which rows are done."""
  index_C = jnp.arange(out.tokens_BxC.shape[1])
  behind_BxC = (index_C >= out.prompt_len_B[:, None]) & (index_C < end_B[:, None])
  masked_BxC = masked(out.tokens_BxC, end_B, mask_id)
  first = lambda is_BxC: jnp.min(jnp.where(is_BxC, index_C, end_B[:, None]), axis=1)
  length_B = first(masked_BxC & behind_BxC)
  eos_at_B = first(behind_BxC & limits.is_eos(out.tokens_BxC))
  eos_B = eos_at_B < length_B
  return out.replace(
    length_B=length_B,
    done_B=~jnp.any(masked_BxC, axis=1),
    eos_B=eos_B,
    text_end_B=jnp.where(eos_B, eos_at_B + 1, length_B),
  )
