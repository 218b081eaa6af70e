"""The weight product of every projection, with a backward pass that is cheap on CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp


@jax.custom_vjp
def linear(x_BxTxI: jax.Array, w_IxO: jax.Array) -> jax.Array:
  """x @ w, [B, T, I] x [I, O] -> [B, T, O].

  Autodiff would compute the weight gradient as (g^T x)^T, for which XLA on CPU transposes g, and
  with it recomputes whatever elementwise work made g. Here the narrower operand is the one that
  is transposed; values are the same.
  """
  return x_BxTxI @ w_IxO


def _forward(x: jax.Array, w: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
  return x @ w, (x, w)


def _backward(
  residuals: tuple[jax.Array, jax.Array], g_BxTxO: jax.Array
) -> tuple[jax.Array, jax.Array]:
  x, w = residuals
  if x.shape[-1] <= g_BxTxO.shape[-1]:
    d_w = jnp.einsum("bti,bto->io", x, g_BxTxO)
  else:
    d_w = jnp.einsum("bto,bti->oi", g_BxTxO, x).T
  return g_BxTxO @ w.T, d_w


linear.defvjp(_forward, _backward)
