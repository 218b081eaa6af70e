"""Rotary positions: frequencies, both pairings, and what makes them relative."""

import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax.errors import UsageError
from sbdjax.nn import rope
from tests.reference import network

LLAMA3 = rope.RopeScaling(8.0, 1.0, 4.0, 64)


@pytest.mark.parametrize("scaling", [None, LLAMA3], ids=["plain", "llama3"])
@pytest.mark.parametrize(("head_dim", "theta"), [(2, 1e4), (8, 1e4), (64, 5e5)])
def test_frequencies(head_dim, theta, scaling):
  expected = network.frequencies(head_dim, theta, scaling)
  np.testing.assert_allclose(rope.frequencies(head_dim, theta, scaling), expected, rtol=1e-12)


def test_llama3_scaling_has_its_three_branches():
  plain, scaled = rope.frequencies(64, 1e4), rope.frequencies(64, 1e4, LLAMA3)
  ratio = plain / scaled
  kept, stretched = np.isclose(ratio, 1), np.isclose(ratio, 8)
  assert kept.any() and stretched.any() and (~kept & ~stretched).any()
  assert (np.diff(ratio) >= -1e-9).all()


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotation_is_that_of_complex_numbers(interleaved):
  rng = np.random.default_rng(0)
  x = rng.normal(size=(2, 3, 5, 8)).astype(np.float32)
  positions = np.array([[0, 1, 2, 3, 400], [7, 7, 0, 2, 1]], np.int32)
  freq = rope.frequencies(8, 1e4)
  out = rope.rotate(jnp.asarray(x), rope.rotation(jnp.asarray(positions), freq), interleaved)
  for b, h in np.ndindex(2, 3):
    expected = network.rotate(x[b, h].astype(np.float64), positions[b], freq, interleaved)
    np.testing.assert_allclose(out[b, h], expected, atol=3e-5)


def test_rotation_keeps_the_dtype():
  x = jnp.ones((1, 1, 2, 4), jnp.bfloat16)
  cos_sin = rope.rotation(jnp.arange(2)[None], rope.frequencies(4, 1e4))
  assert rope.rotate(x, cos_sin, False).dtype == jnp.bfloat16


@pytest.mark.parametrize(
  "fields", [(0.0, 1.0, 4.0, 64), (8.0, 4.0, 4.0, 64), (8.0, 0.0, 4.0, 64), (8.0, 4.0, 1.0, 64)]
)
def test_senseless_scaling_is_refused(fields):
  with pytest.raises(UsageError, match="rope_scaling") as error:
    rope.RopeScaling(*fields)
  assert "\n" not in str(error.value)
