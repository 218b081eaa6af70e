"""How clean sequences become noisy ones: independent masks, one noise level a sequence or a block."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def example_keys(key: jax.Array, example_id_B: jax.Array) -> jax.Array:
  """One key an example, from its global id: noise does not depend on the device count."""
  return jax.vmap(jax.random.fold_in, (None, 0))(key, example_id_B)


def mask_at_random(
  keys_B: jax.Array, tokens_BxL: jax.Array, mask_id: int, full_fraction: float = 0.0
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Equation 13 of SBD: eta ~ U(0, 1) a sequence, then each token masked with probability eta.

  Args:
    full_fraction: probability of eta = 1 instead, a sequence masked from end to end (not in the
      paper, where it is 0).

  Returns:
    noisy tokens int32 [B, L], the bool [B, L] of masked positions, and eta float32 [B].
  """

  def one(key, tokens_L):
    key_eta, key_mask = jax.random.split(key)
    # In (0, 1]: 1 / eta must be finite.
    eta = 1.0 - jax.random.uniform(key_eta)
    eta = jnp.where(jax.random.bernoulli(jax.random.fold_in(key, 0), full_fraction), 1.0, eta)
    masked_L = jax.random.uniform(key_mask, tokens_L.shape) < eta
    return jnp.where(masked_L, mask_id, tokens_L), masked_L, eta

  return jax.vmap(one)(keys_B, tokens_BxL)


def mask_blocks(
  keys_B: jax.Array,
  tokens_BxL: jax.Array,
  maskable_BxL: jax.Array,
  mask_id: int,
  block_size: jax.Array | int,
  *,
  low: float = 0.0,
  high: float = 1.0,
  stratified: bool = True,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Noise of block diffusion: each block has its own t ~ U(low, high), the probability of a mask.

  Linear schedule, alpha_t = 1 - t. `stratified`: the t of a sequence's N blocks are one uniform
  number shifted by b / N (modulo the range), which covers the range evenly and leaves each of
  them uniform; a block's loss depends on its own t alone, so no expectation changes. BD3-LM
  shifts over the whole batch instead, which would tie an example's noise to its neighbours.

  Args:
    maskable_BxL: bool, the positions that may be masked; the others stay as they are.
    block_size: tokens of a block, counted from position 0; may be traced.

  Returns:
    noisy tokens int32 [B, L], the bool [B, L] of masked positions, and t float32 [B, L], equal
    within each block and never 0.
  """
  length = tokens_BxL.shape[1]
  block_L = jnp.arange(length) // block_size
  num_blocks = (length + block_size - 1) // block_size

  def one(key, tokens_L, maskable_L):
    key_t, key_mask = jax.random.split(key)
    u_L = jax.random.uniform(key_t, (length,))
    u_L = (u_L[0] + block_L / num_blocks) % 1.0 if stratified else u_L[block_L]
    # u lies in [0, 1) and so t in (low, high]: 1 / t must be finite.
    t_L = low + (high - low) * (1.0 - u_L)
    masked_L = (jax.random.uniform(key_mask, (length,)) < t_L) & maskable_L
    return jnp.where(masked_L, mask_id, tokens_L), masked_L, t_L

  return jax.vmap(one)(keys_B, tokens_BxL, maskable_BxL)
