"""How clean sequences become noisy ones: independent masks, or a masked suffix of every block."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def example_keys(key: jax.Array, example_id_B: jax.Array) -> jax.Array:
  """One key an example, from its global id: noise does not depend on the device count."""
  return jax.vmap(jax.random.fold_in, (None, 0))(key, example_id_B)


def mask_at_random(
  keys_B: jax.Array, tokens_BxL: jax.Array, mask_id: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Equation 13 of SBD: eta ~ U(0, 1) a sequence, then each token masked with probability eta.

  Returns:
    noisy tokens int32 [B, L], the bool [B, L] of masked positions, and eta float32 [B].
  """

  def one(key, tokens_L):
    key_eta, key_mask = jax.random.split(key)
    # In (0, 1]: 1 / eta must be finite.
    eta = 1.0 - jax.random.uniform(key_eta)
    masked_L = jax.random.uniform(key_mask, tokens_L.shape) < eta
    return jnp.where(masked_L, mask_id, tokens_L), masked_L, eta

  return jax.vmap(one)(keys_B, tokens_BxL)


def mask_block_suffixes(
  keys_B: jax.Array, tokens_BxL: jax.Array, mask_id: int, block_size: jax.Array | int
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Masks the end of every block: its first r tokens stay, r ~ U{0, .., k-1} for each block.

  Not in the SBD paper. Decoding reveals mostly from the left, so these are the canvases it meets;
  independent masks train mostly on infilling, which it seldom does.

  Returns:
    as `mask_at_random`; the third value is the share of the sequence that is masked.
  """
  index_L = jnp.arange(tokens_BxL.shape[1])

  def one(key, tokens_L):
    u_L = jax.random.uniform(key, tokens_L.shape)
    kept_L = jnp.floor(u_L[index_L // block_size * block_size] * block_size)
    masked_L = index_L % block_size >= kept_L
    return jnp.where(masked_L, mask_id, tokens_L), masked_L, jnp.mean(masked_L.astype(jnp.float32))

  return jax.vmap(one)(keys_B, tokens_BxL)
