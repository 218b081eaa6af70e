"""Weights that are no numbers are counted when a checkpoint is opened."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax.errors import CheckpointError
from sbdjax.interop import load_pretrained, native
from sbdjax.interop.soundness import check_finite, count_not_finite
from sbdjax.lm import make_lm
from tests import models

CONFIG = models.config(vocab_size=512)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float16])
@pytest.mark.parametrize("put", [np.asarray, jnp.asarray])
def test_they_are_counted_in_every_dtype(dtype, put):
  values = np.zeros((7, 5), dtype)
  assert count_not_finite(put(values)) == 0
  for n, bad in enumerate((np.nan, np.inf, -np.inf, np.nan), 1):
    values.reshape(-1)[n * n] = bad
    assert count_not_finite(put(values)) == n
  assert count_not_finite(put(np.array([3, 4]))) == 0


def test_large_numbers_are_numbers():
  """Whose sum is none."""
  for dtype in (np.float32, np.float16, jnp.bfloat16):
    assert count_not_finite(np.full(9, jnp.finfo(dtype).max, dtype)) == 0


def test_the_error_counts_by_tensor():
  params = {n: jnp.array([jnp.nan] * (i + 1) + [1.0]) for i, n in enumerate("abcde")} | {
    "f": jnp.ones(2)
  }
  with pytest.raises(
    CheckpointError, match=r"NaN or infinite: a \(1\), b \(2\), c \(3\) and 2 more"
  ):
    check_finite(params, "here")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_checkpoint_with_one_is_refused(tmp_path, bad):
  params = jax.device_get(models.random_params(make_lm(CONFIG)))
  path = tmp_path / "m.safetensors"
  settings = {"tokenizer": "tok512", "eos_ids": [1, 2]}
  native.write(path, CONFIG, params, settings)
  assert load_pretrained(path)
  broken = jax.tree.map(np.array, params)
  broken["layers"]["mlp"]["up_kernel"][0, 0, 0] = bad
  native.write(path, CONFIG, broken, settings)
  with pytest.raises(
    CheckpointError, match=r"m.safetensors holds weights .* layers.mlp.up_kernel \(1\)"
  ):
    load_pretrained(path)
