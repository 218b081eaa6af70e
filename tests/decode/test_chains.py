"""Several chains in one forward: each as if it ran alone, and the cache of the one that is kept."""

import jax
import numpy as np
import pytest

from sbdjax.decode.causal.ar import prefill
from sbdjax.decode.jacobi import chains
from sbdjax.errors import UsageError
from tests import models
from tests.decode.cases.case import MASK
from tests.jit import quick_jit

NET = models.lm_of(vocab_size=12, mask_id=MASK, tie_embeddings=False)
BATCH, WIDTH, CHAINS, COLUMNS = 3, 5, 3, 4
PROMPTS = models.tokens(BATCH, WIDTH, vocab_size=MASK, seed=1)
LENGTHS = np.array([5, 2, 3], np.int32)
TOKENS = models.tokens(BATCH * CHAINS, COLUMNS, vocab_size=MASK, seed=2)
TOKENS = TOKENS.reshape(BATCH, CHAINS, COLUMNS)
BEST, KEPT = np.array([2, 0, 1], np.int32), np.array([3, 1, 4], np.int32)


@pytest.mark.parametrize("mode", chains.MODES)
def test_each_chain_is_as_if_alone(mode):
  params = models.random_params(NET, seed=3)
  # The last slots of the text are those the longest row needs, so scratch lies right after them.
  text = WIDTH + COLUMNS

  @quick_jit
  def run(params, tokens_BxRxT, best, kept):
    several = chains.make_chains(mode, CHAINS, COLUMNS)
    cache = prefill(NET, params, PROMPTS, LENGTHS, text + several.scratch)
    logits, cache = several.run(NET, params, cache, tokens_BxRxT)
    return logits, several.keep(cache, best, kept)

  @quick_jit
  def alone(params, tokens_BxT):
    one = chains.BatchedChains(1)
    cache = prefill(NET, params, PROMPTS, LENGTHS, text)
    logits, cache = one.run(NET, params, cache, tokens_BxT[:, None])
    return logits[:, 0], cache

  logits, cache = jax.device_get(run(params, TOKENS, BEST, KEPT))
  apart = [jax.device_get(alone(params, TOKENS[:, r])) for r in range(CHAINS)]
  for r, (expected, _) in enumerate(apart):
    np.testing.assert_allclose(logits[:, r], expected, rtol=1e-4, atol=1e-4)
  assert (logits[..., MASK] < -1e29).all()
  assert cache.length_B.tolist() == (LENGTHS + KEPT).tolist()
  for row, (best, stop) in enumerate(zip(BEST, LENGTHS + KEPT, strict=True)):
    kept = apart[best][1]
    for found, expected in ((cache.k, kept.k), (cache.v, kept.v)):
      np.testing.assert_allclose(found[:, row, :, :stop], expected[:, row, :, :stop], atol=1e-5)


def test_an_unknown_mode():
  with pytest.raises(UsageError, match="draft_mode='trees': choose one of batch, tree"):
    chains.make_chains("trees", 2, 3)
