"""A model whose causal half is known, and whose masked half is right or wrong, row by row."""

import jax
import jax.numpy as jnp

from sbdjax import cache as kv_cache
from sbdjax.lm import LM, suppress
from tests import models
from tests.decode.cases.case import CONFIG


def scripted_lm(right_B):
  """A model of which every position p says token p % 11, the masked half only in rows `right`.

  In the other rows the masked half says something else, so that no draft is ever accepted.
  """

  def apply(params, tokens_BxT, *, positions_BxT, mask, cache=None, slots_BxT=None, write=True):
    del params, mask, slots_BxT
    is_mask = tokens_BxT == CONFIG.mask_id
    # A clean token speaks for the next position, a mask for its own.
    spoken = (positions_BxT + jnp.where(is_mask, 0, 1)) % 11
    wrong = is_mask & ~jnp.asarray(right_B)[:, None]
    hidden = jnp.where(wrong, (spoken + 5) % 11, spoken)[..., None]
    return hidden, models.stored(cache, tokens_BxT, write)

  def logits(params, hidden):
    del params
    said = 10.0 * jax.nn.one_hot(hidden[..., 0], CONFIG.vocab_size)
    return suppress(said, CONFIG.mask_id)

  def init_cache(batch, capacity):
    return kv_cache.init(1, batch, capacity, 1, 2, "float32")

  return LM(CONFIG, lambda key: None, apply, logits, init_cache)
