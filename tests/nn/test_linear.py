"""The weight product: its hand-written gradient is that of x @ w."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax.nn.linear import Transposed, linear, to_vocabulary


@pytest.mark.parametrize(("width_in", "width_out"), [(3, 5), (5, 3), (4, 4)])
def test_value_and_gradient(width_in, width_out):
  rng = np.random.default_rng(0)
  x = rng.normal(size=(2, 6, width_in)).astype(np.float32)
  w = rng.normal(size=(width_in, width_out)).astype(np.float32)
  g = rng.normal(size=(2, 6, width_out)).astype(np.float32)
  out, pullback = jax.vjp(linear, x, w)
  np.testing.assert_allclose(out, x.astype(np.float64) @ w, atol=1e-5)
  d_x, d_w = pullback(jnp.asarray(g))
  np.testing.assert_allclose(d_x, g.astype(np.float64) @ w.T, atol=1e-5)
  rows = zip(x.reshape(-1, width_in), g.reshape(-1, width_out), strict=True)
  np.testing.assert_allclose(d_w, sum(np.outer(a, b) for a, b in rows), atol=1e-5)


def test_dtypes_are_kept():
  x, w = jnp.ones((1, 2, 3), jnp.bfloat16), jnp.ones((3, 4), jnp.bfloat16)
  grads = jax.grad(lambda x, w: linear(x, w).astype(jnp.float32).sum(), (0, 1))(x, w)
  assert [g.dtype for g in grads] == [jnp.bfloat16] * 2


def rounded(x):
  """To bfloat16 and back, float64."""
  return np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64)


@pytest.mark.parametrize(("width_in", "width_out"), [(30, 50), (50, 30)])
def test_factors_are_rounded_and_sums_are_not(width_in, width_out):
  rng = np.random.default_rng(0)
  x = rng.normal(size=(2, 6, width_in)).astype(np.float32)
  w = rng.normal(size=(width_in, width_out)).astype(np.float32)
  g = rng.normal(size=(2, 6, width_out)).astype(np.float32)
  out, pullback = jax.vjp(lambda x, w: linear(x, w, "bfloat16"), x, w)
  assert out.dtype == jnp.float32
  np.testing.assert_allclose(out, rounded(x) @ rounded(w), atol=1e-4)
  assert np.abs(out - x.astype(np.float64) @ w).max() > 1e-2
  d_x, d_w = pullback(jnp.asarray(g))
  np.testing.assert_allclose(d_x, rounded(g) @ rounded(w).T, atol=1e-4)
  expected = np.einsum("bti,bto->io", rounded(x), rounded(g))
  np.testing.assert_allclose(d_w, expected, atol=1e-4)
  logits, pullback = jax.vjp(lambda x, w: to_vocabulary(x, w, "bfloat16"), x, w.T)
  np.testing.assert_array_equal(logits, out)
  for found, of_linear in zip(pullback(jnp.asarray(g)), (d_x, d_w.T), strict=True):
    np.testing.assert_allclose(found, of_linear, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 2, 32, 33])
def test_rows_of_a_prepared_weight_do_not_depend_on_each_other(rows):
  rng = np.random.default_rng(0)
  x, w = rng.normal(size=(1, 33, 60)).astype(np.float32), rng.normal(size=(60, 50))
  prepared = Transposed(jnp.asarray(w.T, jnp.bfloat16))
  found = linear(jnp.asarray(x[:, :rows]), prepared, "bfloat16")
  assert found.dtype == jnp.float32 and found.shape == (1, rows, 50)
  np.testing.assert_allclose(found, rounded(x[:, :rows]) @ rounded(w), atol=1e-4)
