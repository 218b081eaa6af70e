"""Norms and feed-forward parts of a layer, chosen by the configuration."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from sbdjax.nn.adapter import adapted
from sbdjax.nn.config import TransformerConfig
from sbdjax.nn.linear import linear, weight


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

    def project(name: str, x: jax.Array, features: int, fan_in: int) -> jax.Array:
      shape = (x.shape[-1], features)
      y = linear(x, weight(self, f"{name}_kernel", dense_init(fan_in), shape, c.param_dtype))
      y = adapted(self, c.adapter, name, x, y, self.num_open)
      if not c.mlp_bias:
        return y
      bias = self.param(f"{name}_bias", nn.initializers.zeros, (features,), c.param_dtype)
      return y + bias.astype(y.dtype)

    if gated:
      h = activation(project("gate", x, c.d_ff, c.d_model)) * project("up", x, c.d_ff, c.d_model)
    else:
      h = activation(project("up", x, c.d_ff, c.d_model))
    return project("down", h, c.d_model, c.d_ff * 2 * c.num_layers)
