"""The one decoder-only transformer (Llama / Qwen family), layers stacked and scanned.

Nothing here is causal or bidirectional: the mask decides. Parameters are one nested dict whose
layer leaves carry a leading axis N, so compile time does not grow with depth.
"""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from sbdjax.errors import UsageError
from sbdjax.kernels import xla
from sbdjax.masks import Mask
from sbdjax.nn import rope
from sbdjax.nn.linear import linear

# What backward may keep of a layer. "none": everything; "full": nothing but the layer's input;
# "dots": results of weight products (not of attention's batched ones).
REMAT_POLICIES = {
  "none": None,
  "full": jax.checkpoint_policies.nothing_saveable,
  "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}
_DTYPES = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """Shape and numerics of the network.

  Attributes:
    vocab_size: rows of the embedding, the mask token's included.
    num_layers: N.
    d_model: D.
    num_heads: H.
    num_kv_heads: K, divides H (grouped-query attention).
    d_ff: hidden width of SwiGLU.
    max_seq_len: positions the model is meant for; decoding refuses longer ones.
    head_dim: Dh; 0 means d_model / num_heads.
    rope_theta: base of the rotary frequencies.
    rope_scaling: llama-3 rescaling; a RopeScaling, a mapping of its fields, or None.
    rope_interleaved: rotate pairs (2i, 2i+1) (llama2.c) instead of (i, i + Dh/2) (Hugging Face).
    norm_eps: of every RMSNorm.
    tie_embeddings: the output head is the transposed embedding.
    qkv_bias: biases on q, k, v (Qwen2).
    qk_norm: RMSNorm over each head's q and k before the rotation (Qwen3).
    mask_id: id of the mask token, or None for a model without one. It can be an input, never a
      prediction: losses and samplers take it out of every distribution.
    param_dtype: dtype parameters are stored in.
    compute_dtype: dtype of activations; norms, softmax and logits are float32 always.
    remat: what the backward pass may keep of a layer: "none", "dots" or "full".
  """

  vocab_size: int
  num_layers: int
  d_model: int
  num_heads: int
  num_kv_heads: int
  d_ff: int
  max_seq_len: int
  head_dim: int = 0
  rope_theta: float = 10_000.0
  rope_scaling: rope.RopeScaling | None = None
  rope_interleaved: bool = False
  norm_eps: float = 1e-5
  tie_embeddings: bool = True
  qkv_bias: bool = False
  qk_norm: bool = False
  mask_id: int | None = None
  param_dtype: str = "float32"
  compute_dtype: str = "float32"
  remat: str = "none"

  def __post_init__(self):
    sizes = ("vocab_size", "num_layers", "d_model", "num_heads", "num_kv_heads", "d_ff")
    for name in (*sizes, "max_seq_len"):
      if getattr(self, name) < 1:
        raise UsageError(f"model.{name} must be at least 1, got {getattr(self, name)}")
    if self.num_heads % self.num_kv_heads:
      raise UsageError(
        f"model.num_heads={self.num_heads} must be a multiple of "
        f"model.num_kv_heads={self.num_kv_heads}"
      )
    if not self.head_dim:
      if self.d_model % self.num_heads:
        raise UsageError(
          f"model.d_model={self.d_model} is no multiple of model.num_heads={self.num_heads}: "
          "set model.head_dim"
        )
      object.__setattr__(self, "head_dim", self.d_model // self.num_heads)
    if self.head_dim % 2 or self.head_dim < 2:
      raise UsageError(
        f"model.head_dim={self.head_dim} must be even and positive for rotary positions"
      )
    for name in ("rope_theta", "norm_eps"):
      if not getattr(self, name) > 0:
        raise UsageError(f"model.{name}={getattr(self, name)} must be positive")
    if isinstance(self.rope_scaling, dict):
      object.__setattr__(self, "rope_scaling", rope.RopeScaling(**self.rope_scaling))
    if self.mask_id is not None and not 0 <= self.mask_id < self.vocab_size:
      raise UsageError(
        f"model.mask_id={self.mask_id} lies outside the vocabulary of {self.vocab_size}"
      )
    for name in ("param_dtype", "compute_dtype"):
      if getattr(self, name) not in _DTYPES:
        raise UsageError(f"model.{name}={getattr(self, name)!r}: choose one of {_DTYPES}")
    if self.remat not in REMAT_POLICIES:
      raise UsageError(f"model.remat={self.remat!r}: choose one of {tuple(REMAT_POLICIES)}")


def _dense_init(fan_in: int):
  return nn.initializers.normal(stddev=fan_in**-0.5)


class RMSNorm(nn.Module):
  """x / rms(x) * scale, in float32, over the last axis."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x):
    c = self.config
    scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), c.param_dtype)
    x32 = x.astype(jnp.float32)
    x32 = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + c.norm_eps)
    return (x32 * scale.astype(jnp.float32)).astype(x.dtype)


class Attention(nn.Module):
  """Grouped-query attention with rotary positions over [cache | new tokens]."""

  config: TransformerConfig

  def _project(self, name, x_BxTxD, heads):
    """One of q, k, v: kernel [D, heads, Dh]; returns [B, heads, T, Dh]."""
    c = self.config
    shape = (c.d_model, heads, c.head_dim)
    kernel = self.param(f"{name}_kernel", _dense_init(c.d_model), shape, c.param_dtype)
    y = linear(x_BxTxD, kernel.astype(x_BxTxD.dtype).reshape(c.d_model, -1))
    if c.qkv_bias:
      bias = self.param(f"{name}_bias", nn.initializers.zeros, shape[1:], c.param_dtype)
      y = y + bias.astype(y.dtype).reshape(-1)
    return jnp.swapaxes(y.reshape(*y.shape[:-1], heads, c.head_dim), 1, 2)

  @nn.compact
  def __call__(self, x_BxTxD, cached_kv, cos_sin, plan):
    c = self.config
    q = self._project("q", x_BxTxD, c.num_heads)
    k = self._project("k", x_BxTxD, c.num_kv_heads)
    v = self._project("v", x_BxTxD, c.num_kv_heads)
    if c.qk_norm:
      q, k = RMSNorm(c, name="q_norm")(q), RMSNorm(c, name="k_norm")(k)
    q = rope.rotate(q, cos_sin, c.rope_interleaved)
    k = rope.rotate(k, cos_sin, c.rope_interleaved)
    old_k, old_v = cached_kv if cached_kv is not None else ((), ())
    out = xla.attend(q, (*old_k, k), (*old_v, v), plan)
    out = jnp.swapaxes(out, 1, 2).reshape(*x_BxTxD.shape[:-1], -1)
    fan_in = c.num_heads * c.head_dim
    kernel = self.param(
      "o_kernel",
      _dense_init(fan_in * 2 * c.num_layers),
      (c.num_heads, c.head_dim, c.d_model),
      c.param_dtype,
    )
    return linear(out, kernel.astype(out.dtype).reshape(fan_in, -1)), (k, v)


class SwiGLU(nn.Module):
  """down(silu(gate x) * up x)."""

  config: TransformerConfig

  @nn.compact
  def __call__(self, x):
    c = self.config

    def kernel(name, fan_in, shape):
      return self.param(f"{name}_kernel", _dense_init(fan_in), shape, c.param_dtype).astype(x.dtype)

    gate = linear(x, kernel("gate", c.d_model, (c.d_model, c.d_ff)))
    up = linear(x, kernel("up", c.d_model, (c.d_model, c.d_ff)))
    down = kernel("down", c.d_ff * 2 * c.num_layers, (c.d_ff, c.d_model))
    return linear(nn.silu(gate) * up, down)


class Layer(nn.Module):
  """Pre-norm residual layer; returns the hidden states and this forward's keys and values."""

  config: TransformerConfig
  keep_kv: bool

  @nn.compact
  def __call__(self, x_BxTxD, cached_kv, cos_sin, plan):
    c = self.config
    attended, kv = Attention(c, name="attn")(
      RMSNorm(c, name="attn_norm")(x_BxTxD), cached_kv, cos_sin, plan
    )
    x_BxTxD = x_BxTxD + attended
    x_BxTxD = x_BxTxD + SwiGLU(c, name="mlp")(RMSNorm(c, name="mlp_norm")(x_BxTxD))
    return x_BxTxD, (kv if self.keep_kv else None)


class Transformer(nn.Module):
  """Tokens to final hidden states; `logits` maps those to the vocabulary where asked."""

  config: TransformerConfig

  def setup(self):
    c = self.config
    shape = (c.vocab_size, c.d_model)
    self.embedding = self.param("embedding", _dense_init(c.d_model), shape, c.param_dtype)
    if not c.tie_embeddings:
      self.head = self.param("head", _dense_init(c.d_model), shape, c.param_dtype)
    self.final_norm = RMSNorm(c)

  @nn.compact
  def __call__(self, tokens_BxT, positions_BxT, mask: Mask, cached_kv):
    """Runs the layers.

    Args:
      tokens_BxT: int32 token ids.
      positions_BxT: int32 rotary positions.
      mask: rule over [cache slots | T tokens].
      cached_kv: None, or ((k,), (v,)) with k, v of [N, B, K, S, Dh].

    Returns:
      hidden [B, T, D] after the final norm, and None or this forward's (k, v), each
      [N, B, K, T, Dh].
    """
    c = self.config
    x_BxTxD = jnp.take(self.embedding, tokens_BxT, axis=0).astype(c.compute_dtype)
    cos_sin = rope.rotation(
      positions_BxT, rope.frequencies(c.head_dim, c.rope_theta, c.rope_scaling)
    )
    num_queries = tokens_BxT.shape[1]
    capacity = 0 if cached_kv is None else cached_kv[0][0].shape[3]
    plan = xla.plan(mask, num_queries, capacity + num_queries)
    layer = Layer
    if c.remat != "none":
      layer = nn.remat(Layer, policy=REMAT_POLICIES[c.remat], prevent_cse=False)
    layers = nn.scan(
      layer,
      variable_axes={"params": 0},
      split_rngs={"params": True},
      in_axes=(0, nn.broadcast, nn.broadcast),
      length=c.num_layers,
    )
    x_BxTxD, kv = layers(c, cached_kv is not None, name="layers")(x_BxTxD, cached_kv, cos_sin, plan)
    return self.final_norm(x_BxTxD), kv

  def logits(self, hidden_BxTxD):
    """float32 logits [..., V]."""
    head = self.embedding if self.config.tie_embeddings else self.head
    return jnp.einsum(
      "...d,vd->...v",
      hidden_BxTxD,
      head.astype(hidden_BxTxD.dtype),
      preferred_element_type=jnp.float32,
    )
