"""Gives a next-token model the mask token that SBD and masked diffusion need."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from sbdjax.nn.transformer import TransformerConfig


def add_mask_token(config: TransformerConfig, params: dict) -> tuple[TransformerConfig, dict]:
  """Appends one embedding row (the mean of the others) and names it the mask token.

  A model that has a mask token is returned as it is. Because losses and samplers take the mask
  token out of every distribution, the new row changes no next-token probability.
  """
  if config.mask_id is not None:
    return config, params

  def append(table_VxD):
    return jnp.concatenate([table_VxD, jnp.mean(table_VxD, axis=0, keepdims=True)])

  tables = {name: append(params[name]) for name in ("embedding", "head") if name in params}
  config = dataclasses.replace(config, vocab_size=config.vocab_size + 1, mask_id=config.vocab_size)
  return config, {**params, **tables}
