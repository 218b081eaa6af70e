"""A self-speculative model that is one lookup table, in the manner of `table_model`.

The row a draft asks for depends on every token before the padding and on the place it is for; a
target's row on the draft's and on the tokens before it, each with its place and its turn.
"""

import jax.numpy as jnp
import numpy as np

from sbdjax.lm import suppress
from sbdjax.nn.sigma import HeadConfig
from sbdjax.sigma_lm import SigmaLM, align, in_order
from tests import models
from tests.losses.table_model import MASK, MODULUS, PARAMS, ROWS, V

_RNG = np.random.default_rng(1)
_TOKEN_CODE = _RNG.integers(1, MODULUS, (V, 64))  # by token and place
_PLACE_CODE = _RNG.integers(1, ROWS, (2, 64))  # of the place asked for, by draft and target


def make_lm() -> SigmaLM:
  """The table as a SigmaLM; hidden states [B, L, 1] are row numbers."""

  def trunk(params, tokens_BxL, *, length_B=None):
    del params
    place_L = jnp.arange(tokens_BxL.shape[1])
    codes_BxL = jnp.asarray(_TOKEN_CODE)[tokens_BxL, place_L]
    context_B = jnp.sum(jnp.where(place_L < length_B[:, None], codes_BxL, 0), axis=1)
    rows_BxL = (context_B[:, None] % MODULUS * 5 + jnp.asarray(_PLACE_CODE)[0, place_L]) % ROWS
    return rows_BxL[..., None].astype(jnp.float32)

  def target(params, tokens_BxL, hidden_BxLxD, sigma_BxL, *, equal_at_B=None):
    del params
    codes_BxL = jnp.asarray(_TOKEN_CODE)[in_order(tokens_BxL, sigma_BxL), sigma_BxL]
    codes_BxL = codes_BxL * (1 + jnp.arange(sigma_BxL.shape[1]))
    context_BxL = jnp.cumsum(codes_BxL, axis=1)
    draft_BxL = in_order(hidden_BxLxD, sigma_BxL)[..., 0].astype(jnp.int32)
    next_BxL = jnp.roll(sigma_BxL, -1, axis=1)
    own_BxL = jnp.asarray(_PLACE_CODE)[1, next_BxL] + 7 * jnp.roll(draft_BxL, -1, axis=1)
    rows_BxL = (context_BxL % MODULUS * 5 + own_BxL) % ROWS
    causal = rows_BxL[..., None].astype(jnp.float32)
    return align(causal, in_order(hidden_BxLxD, sigma_BxL), equal_at_B)

  def logits(params, hidden):
    return suppress(params["table"][hidden[..., 0].astype(jnp.int32)], MASK)

  config = models.config(vocab_size=V, mask_id=MASK)
  return SigmaLM(config, HeadConfig(), lambda key: PARAMS, trunk, target, logits)


def draft_row(noisy_L, place, length):
  """Row of a draft, in plain numbers."""
  context = sum(int(_TOKEN_CODE[noisy_L[s], s]) for s in range(length))
  return (context % MODULUS * 5 + int(_PLACE_CODE[0, place])) % ROWS


def target_row(noisy_L, tokens_L, sigma_L, column, length):
  """Row of the target of sigma(column), in plain numbers."""
  place = int(sigma_L[column])
  draft = draft_row(noisy_L, place, length)
  if column == 0:
    return draft
  before = [int(s) for s in sigma_L[:column]]
  context = sum((j + 1) * int(_TOKEN_CODE[tokens_L[s], s]) for j, s in enumerate(before))
  return (context % MODULUS * 5 + int(_PLACE_CODE[1, place]) + 7 * draft) % ROWS
