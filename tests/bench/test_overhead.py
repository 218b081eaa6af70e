"""What a sampler adds to its forwards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax import cache as kv_cache
from sbdjax.bench import overhead
from sbdjax.bench.overhead import Forward
from sbdjax.bench.timing import TimedDecoder
from sbdjax.decode.base import Limits
from sbdjax.decode.causal.sbd import SBD
from sbdjax.decode.rules import TopK
from tests import models

BLOCKS = [Forward(0, 4, 4), Forward(4, 4, 4)]


def test_counts_follow_from_the_widths():
  assert overhead.counts([Forward(1, 0, 1)], 7, 7) == [7]
  # Three blocks of 4, of 3 forwards each; the first of the second and third are twice as wide.
  assert overhead.counts(BLOCKS, 9, 7 * 4 + 2 * 8) == [7, 2]


@pytest.mark.parametrize("forwards, nfe, tokens", [([Forward(1, 0, 1)], 7, 8), (BLOCKS, 3, 13)])
def test_impossible_counts(forwards, nfe, tokens):
  with pytest.raises(ValueError, match="never have"):
    overhead.counts(forwards, nfe, tokens)


@pytest.mark.long
def test_the_loop_runs_as_many_forwards_as_it_is_told():
  calls = []
  lm = models.lm_of(mask_id=12)
  cache = kv_cache.commit(lm.init_cache(2, 8), jnp.array([3, 3]))

  def apply(params, tokens_BxT, *, positions_BxT, mask, cache):
    calls.append((tokens_BxT.shape, mask.num_causal, np.asarray(positions_BxT).tolist()))
    return jnp.zeros((*tokens_BxT.shape, 16)), cache.replace(k=cache.k + 1)

  logits = lambda params, hidden: jnp.zeros((*hidden.shape[:2], 13))
  loop = overhead.forward_loop(lm._replace(apply=apply, logits=logits), Forward(2, 1, 1))
  with jax.disable_jit():
    found = loop(None, cache, 3)
  assert calls == 3 * [((2, 3), 2, [[3, 4, 5], [3, 4, 5]])]
  np.testing.assert_array_equal(found.k, 3.0)


@pytest.mark.long
def test_sampler_and_forwards_are_timed_in_turns():
  lm = models.lm_of(mask_id=12)
  found = overhead.measure(
    lm,
    models.random_params(lm),
    TimedDecoder(lm, Limits(8)),
    SBD(4, TopK(2)),
    BLOCKS,
    [1, 2, 3],
    batch_size=2,
    max_tokens=8,
    repeats=3,
  )
  assert found.steps == 4  # two blocks of two forwards
  assert found.share.low <= found.share.median <= found.share.high
  assert found.step_seconds > 0 and found.forward_seconds > 0
