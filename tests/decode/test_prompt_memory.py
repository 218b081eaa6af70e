"""The prompt's forward takes memory that grows with its length, not with the square of it."""

import jax
import jax.numpy as jnp
import pytest

from sbdjax.decode.causal.ar import prefill
from sbdjax.lm import make_lm
from tests import models


def _bytes(length):
  lm = make_lm(models.config(max_seq_len=1 << 15, num_heads=4))
  params = jax.eval_shape(lm.init, jax.random.key(0))
  prompt, count = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((1, length), (1,)))
  run = jax.jit(lambda *args: prefill(lm, *args, length + 256))
  return run.lower(params, prompt, count).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.long
def test_a_prompt_of_20000_tokens_makes_no_dense_scores():
  short, long = _bytes(4096), _bytes(20480)
  assert long < 7 * short  # 25 times as much for dense scores
  assert long < 20480**2  # bytes: one head's scores in float32 are four times that
