"""The weight product: its hand-written gradient is that of x @ w."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax.nn.linear import linear


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
