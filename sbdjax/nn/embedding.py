"""What happens to token embeddings before the first layer."""

from __future__ import annotations

import jax
import jax.numpy as jnp

# 15 % of the tokens were chosen in ESM's training, and 80 % of those masked.
_KEPT_IN_TRAINING = 1 - 0.15 * 0.8


def as_padding(tokens_BxL: jax.Array, length_B: jax.Array, pad_id: int | None) -> jax.Array:
  """Tokens from `length_B` on as `pad_id`, for a model that tells padding by its token."""
  if pad_id is None:
    return tokens_BxL
  return jnp.where(jnp.arange(tokens_BxL.shape[1]) < length_B[:, None], tokens_BxL, pad_id)


def drop_masked(
  x_BxTxD: jax.Array, tokens_BxT: jax.Array, mask_id: int, pad_id: int | None
) -> jax.Array:
  """ESM's token dropout: masks enter as zeros, and the rest is scaled up to make up for them.

  As in fair-esm and Hugging Face's EsmEmbeddings: the factor is 0.88 / (1 - masks / tokens of the
  row), padding counted as no token and zeroed. A row of masks alone, where they divide by zero,
  gives zeros here.
  """
  masked_BxT = tokens_BxT == mask_id
  pad_BxT = jnp.zeros_like(masked_BxT) if pad_id is None else tokens_BxT == pad_id
  n_B = jnp.maximum(jnp.sum(~pad_BxT, axis=1), 1).astype(jnp.float32)
  kept_B = 1 - jnp.sum(masked_BxT, axis=1).astype(jnp.float32) / n_B
  scale_B = _KEPT_IN_TRAINING / jnp.where(kept_B > 0, kept_B, 1.0)
  scale_BxT = jnp.where(masked_BxT | pad_BxT, 0.0, scale_B[:, None])
  return (x_BxTxD.astype(jnp.float32) * scale_BxT[..., None]).astype(x_BxTxD.dtype)
