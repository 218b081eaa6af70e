"""Norms and feed-forward parts of a layer, chosen by the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from sbdjax.nn.adapter import adapted
from sbdjax.nn.config import TransformerConfig
from sbdjax.nn.linear import Weight, products


def dense_init(fan_in: int) -> nn.initializers.Initializer:
  """Normal with variance 1 / fan_in."""
  return nn.initializers.normal(stddev=fan_in**-0.5)


class RMSNorm(nn.Module):
  """x / rms(x) * scale, in float32, over the last axis."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    c = self.config
    scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), c.param_dtype)
    x32 = x.astype(jnp.float32)
    x32 = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + c.norm_eps)
    return (x32 * scale.astype(jnp.float32)).astype(x.dtype)


class LayerNorm(nn.Module):
  """(x - mean) / std * scale + bias, in float32, over the last axis."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    c = self.config
    scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), c.param_dtype)
    bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],), c.param_dtype)
    x32 = x.astype(jnp.float32)
    x32 = x32 - jnp.mean(x32, axis=-1, keepdims=True)
    x32 = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + c.norm_eps)
    return (x32 * scale.astype(jnp.float32) + bias.astype(jnp.float32)).astype(x.dtype)


NORMS = {"rms": RMSNorm, "layer": LayerNorm}


def make_norm(config: TransformerConfig, **kwargs: Any) -> nn.Module:
  """The norm of `config.norm`; `kwargs` as of any module (name)."""
  return NORMS[config.norm](config, **kwargs)


def gelu(x: jax.Array) -> jax.Array:
  """x Phi(x), exactly (by the error function)."""
  return nn.gelu(x, approximate=False)


# config.mlp -> (activation, whether a gate multiplies it).
MLPS = {"swiglu": (nn.silu, True), "gelu": (gelu, False), "gelu_tanh": (nn.gelu, False)}


class MLP(nn.Module):
  """down(act(gate x) * up x), or down(act(up x)) where nothing is gated.

  Attributes:
    num_open: how many tokens, the last ones, an adapter acts on.
  """

  config: TransformerConfig
  num_open: int = 0

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    c = self.config
    activation, gated = MLPS[c.mlp]

    def project(names: Sequence[str], x: jax.Array, features: int, fan_in: int) -> list[jax.Array]:
      init, shape = dense_init(fan_in), (x.shape[-1], features)
      weights = [Weight(f"{name}_kernel", init, shape) for name in names]
      several = products(self, x, weights, c.param_dtype, c.product_dtype)
      return [
        biased(name, adapted(self, c.adapter, name, x, y, self.num_open))
        for name, y in zip(names, several, strict=True)
      ]

    def biased(name: str, y: jax.Array) -> jax.Array:
      if not c.mlp_bias:
        return y
      bias = self.param(f"{name}_bias", nn.initializers.zeros, y.shape[-1:], c.param_dtype)
      return y + bias.astype(y.dtype)

    names = ("gate", "up") if gated else ("up",)
    h, *rest = project(names, x, c.d_ff, c.d_model)
    h = activation(h)
    for factor in rest:
      h = h * factor
    return project(("down",), h, c.d_model, c.d_ff * 2 * c.num_layers)[0]
