"""The one transformer of every family, layers stacked and scanned.

Nothing here is causal or bidirectional: the mask decides. Parameters are one nested dict whose
layer leaves carry a leading axis N, so compile time does not grow with depth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from sbdjax.errors import UsageError
from sbdjax.kernels import backend, parts
from sbdjax.masks import Mask
from sbdjax.nn import rope
from sbdjax.nn.config import REMAT_POLICIES, TransformerConfig
from sbdjax.nn.dropout import drop_channels, layer_keys
from sbdjax.nn.embedding import drop_masked
from sbdjax.nn.linear import linear
from sbdjax.nn.parts import MLP, RMSNorm, dense_init, gelu, make_norm

__all__ = ["REMAT_POLICIES", "Transformer", "TransformerConfig"]

Attend = Callable[[jax.Array, tuple[parts.Part, ...], tuple[parts.Part, ...], Any], jax.Array]


class Attention(nn.Module):
  """Grouped-query attention over [cache | new tokens], with rotary positions where given.

  Attributes:
    attend: `kernels.backend.Backend.attend` of the backend that made the plan.
  """

  config: TransformerConfig
  attend: Attend

  def _project(self, name, x_BxTxD, heads):
    """One of q, k, v: kernel [D, heads, Dh]; returns [B, heads, T, Dh]."""
    c = self.config
    shape = (c.d_model, heads, c.head_dim)
    kernel = self.param(f"{name}_kernel", dense_init(c.d_model), shape, c.param_dtype)
    y = linear(x_BxTxD, kernel.astype(x_BxTxD.dtype).reshape(c.d_model, -1))
    if c.qkv_bias:
      bias = self.param(f"{name}_bias", nn.initializers.zeros, shape[1:], c.param_dtype)
      y = y + bias.astype(y.dtype).reshape(-1)
    return jnp.swapaxes(y.reshape(*y.shape[:-1], heads, c.head_dim), 1, 2)

  @nn.compact
  def __call__(self, x_BxTxD, layer, cached_kv, turns, plan):
    c = self.config
    q = self._project("q", x_BxTxD, c.num_heads)
    k = self._project("k", x_BxTxD, c.num_kv_heads)
    v = self._project("v", x_BxTxD, c.num_kv_heads)
    if c.qk_norm:
      q, k = RMSNorm(c, name="q_norm")(q), RMSNorm(c, name="k_norm")(k)
    if turns is not None:
      q = rope.rotate(q, turns[0], c.rope_interleaved)
      k = rope.rotate(k, turns[1], c.rope_interleaved)
    old_k, old_v = ((), ()) if cached_kv is None else cached_kv
    keys, values = (
      (*(parts.Layer(x, layer) for x in old), new) for old, new in ((old_k, k), (old_v, v))
    )
    out = self.attend(q, keys, values, plan)
    out = jnp.swapaxes(out, 1, 2).reshape(*x_BxTxD.shape[:-1], -1)
    fan_in = c.num_heads * c.head_dim
    kernel = self.param(
      "o_kernel",
      dense_init(fan_in * 2 * c.num_layers),
      (c.num_heads, c.head_dim, c.d_model),
      c.param_dtype,
    )
    out = linear(out, kernel.astype(out.dtype).reshape(fan_in, -1))
    if c.o_bias:
      bias = self.param("o_bias", nn.initializers.zeros, (c.d_model,), c.param_dtype)
      out = out + bias.astype(out.dtype)
    return out, (k, v)


class Layer(nn.Module):
  """Pre-norm residual layer; returns the hidden states and this forward's keys and values."""

  config: TransformerConfig
  keep_kv: bool
  attend: Attend

  @nn.compact
  def __call__(self, x_BxTxD, of_layer, cached_kv, turns, plan):
    c, (layer, keys_B) = self.config, of_layer
    attended, kv = Attention(c, self.attend, name="attn")(
      make_norm(c, name="attn_norm")(x_BxTxD), layer, cached_kv, turns, plan
    )
    x_BxTxD = x_BxTxD + drop_channels(attended, c.dropout, keys_B, 0)
    transformed = MLP(c, name="mlp")(make_norm(c, name="mlp_norm")(x_BxTxD))
    x_BxTxD = x_BxTxD + drop_channels(transformed, c.dropout, keys_B, 1)
    return x_BxTxD, (kv if self.keep_kv else None)


def stack(config: TransformerConfig):
  """The module class of `config.num_layers` layers, scanned: parameters with a leading axis N.

  Called as
  `stack(config)(config, keep_kv, attend, name=...)(x_BxTxD, of_layers, cached_kv, turns, plan)`;
  `of_layers` from `per_layer`; `turns` are the rotations (`rope.rotation`) of queries and of keys,
  or None; `attend` and `plan` are of one attention backend.
  """
  layer = Layer
  if config.remat != "none":
    layer = nn.remat(Layer, policy=REMAT_POLICIES[config.remat], prevent_cse=False)
  return nn.scan(
    layer,
    variable_axes={"params": 0},
    split_rngs={"params": True},
    in_axes=(0, nn.broadcast, nn.broadcast, nn.broadcast),
    length=config.num_layers,
    # The check traces the layer once more and takes kernels, which JAX never removes as unused, for
    # something that depends on the layer.
    check_constancy_invariants=False,
  )


def run_layers(
  module: nn.Module,
  config: TransformerConfig,
  keep_kv: bool,
  attend: Attend,
  x_BxTxD: jax.Array,
  keys_B: jax.Array | None,
  cached_kv,
  rotations,
  plan,
):
  """Runs the layers that `module` holds as its parameter "layers", in either form.

  Stacked parameters (leaves [N, ...], as `init` makes them) are scanned. A tuple of N layers
  (`nn.prepare.separate_layers`) is a Python loop over one compiled function.

  Args:
    keep_kv: return this forward's keys and values.
    attend: of the backend that made `plan`.
    keys_B: of dropout, one a row; None: nothing is dropped.
    cached_kv: as of `Transformer`.
    rotations: (of queries, of keys), each a `rope.rotation`, or None.

  Returns:
    The residual stream [B, T, D], and None or (k, v), each [N, B, K, T, Dh].
  """
  of_layers = per_layer(config, keys_B)
  layers = module.get_variable("params", "layers")
  if not isinstance(layers, tuple):
    scanned = stack(config)(config, keep_kv, attend, name="layers")
    return scanned(x_BxTxD, of_layers, cached_kv, rotations, plan)
  layer = Layer(config, keep_kv, attend, parent=None)

  # Traced once for all layers, whose shapes are equal.
  @jax.jit
  def run(params, x_BxTxD, of_layer):
    return layer.apply({"params": params}, x_BxTxD, of_layer, cached_kv, rotations, plan)

  kv = []
  for n, params in enumerate(layers):
    x_BxTxD, kv_n = run(params, x_BxTxD, jax.tree.map(lambda x, n=n: x[n], of_layers))
    kv.append(kv_n)
  if not keep_kv:
    return x_BxTxD, None
  kv = jax.tree.map(lambda *x: jnp.stack(x), *kv)
  return x_BxTxD, jax.tree.map(lambda x: known_after(x_BxTxD, x), kv)


def known_after(x: jax.Array, value: jax.Array) -> jax.Array:
  """`value`, which XLA cannot know before `x`.

  Keys and values that depend on the last layer are written to the cache after every layer has read
  it, hence in place. Otherwise XLA on CPU copies the whole cache twice per forward. It removes
  `optimization_barrier` before it decides that.
  """
  one = x[(0,) * x.ndim]
  never = jnp.isnan(one) & ~jnp.isnan(one)
  return jnp.where(never, jnp.zeros_like(value), value)


def per_layer(config: TransformerConfig, keys_B):
  """(index, dropout keys) of every layer; the keys are None where `keys_B` is."""
  return jnp.arange(config.num_layers, dtype=jnp.int32), layer_keys(keys_B, config.num_layers)


class Transformer(nn.Module):
  """Tokens to final hidden states; `logits` maps those to the vocabulary where asked.

  Attributes:
    attention: how attention is computed, one of `kernels.backend.NAMES`. Parameters do not depend
      on it, and making them with plain XLA needs no kernels.
  """

  config: TransformerConfig
  attention: str = "xla"

  def setup(self):
    c = self.config
    shape, init = (c.vocab_size, c.d_model), dense_init(c.d_model)
    self.embedding = self.param("embedding", init, shape, c.param_dtype)
    if not c.tie_embeddings:
      self.head = self.param("head", init, shape, c.param_dtype)
    if c.positions == "learned":
      rows = (c.max_seq_len, c.d_model)
      self.position_embedding = self.param("position_embedding", init, rows, c.param_dtype)
    self.final_norm = make_norm(c)
    if c.mlm_head:
      zeros = nn.initializers.zeros
      self.dense_kernel = self.param("dense_kernel", init, (c.d_model, c.d_model), c.param_dtype)
      self.dense_bias = self.param("dense_bias", zeros, (c.d_model,), c.param_dtype)
      self.head_norm = make_norm(c)
      self.head_bias = self.param("head_bias", zeros, (c.vocab_size,), c.param_dtype)

  def embed(self, tokens_BxT):
    """The rows of the embedding alone, [B, T, D]: no positions, nothing scaled."""
    return jnp.take(self.embedding, tokens_BxT, axis=0).astype(self.config.compute_dtype)

  def _embed(self, tokens_BxT, positions_BxT, cached: bool):
    c = self.config
    x_BxTxD = self.embed(tokens_BxT)
    if c.token_dropout:
      if cached:
        raise UsageError(
          "this model scales its input by the share of masks in the whole text "
          "(token_dropout), so it cannot be decoded with a cache"
        )
      x_BxTxD = drop_masked(x_BxTxD, tokens_BxT, c.mask_id, c.pad_id)
    if c.positions == "learned":
      # Scratch beyond the end must stay finite, though nothing that counts may look at it.
      rows = jnp.take(self.position_embedding, positions_BxT, axis=0, mode="clip")
      x_BxTxD = x_BxTxD + rows.astype(x_BxTxD.dtype)
    return x_BxTxD

  def __call__(self, tokens_BxT, positions_BxT, mask: Mask, cached_kv, keys_B=None):
    """Runs the layers and the final norm.

    Args:
      tokens_BxT: int32 token ids.
      positions_BxT: int32 positions.
      mask: rule over [cache slots | T tokens].
      cached_kv: None, or ((k,), (v,)) with k, v of [N, B, K, S, Dh].
      keys_B: of dropout, one a row; None: nothing is dropped.

    Returns:
      hidden [B, T, D] after the final norm, and None or this forward's (k, v), each
      [N, B, K, T, Dh].

    Raises:
      UsageError: a cache for a model with token dropout.
    """
    x_BxTxD, kv = self.stream(tokens_BxT, positions_BxT, mask, cached_kv, keys_B)
    x_BxTxD = self.final_norm(x_BxTxD)
    if self.config.mlm_head and self.is_initializing():
      self.logits(x_BxTxD)  # a norm's parameters come into being where it is first called
    return x_BxTxD, kv

  @nn.compact
  def stream(self, tokens_BxT, positions_BxT, mask: Mask, cached_kv, keys_B=None):
    """As `__call__`, but the residual stream as the last layer leaves it, before the final norm."""
    c = self.config
    x_BxTxD = self._embed(tokens_BxT, positions_BxT, cached_kv is not None)
    turns = None
    if c.positions == "rotary":
      turns = (rope.rotation(positions_BxT, rope.frequencies_of(c)),) * 2
    num_queries = tokens_BxT.shape[1]
    capacity = 0 if cached_kv is None else cached_kv[0][0].shape[3]
    attention = backend.get(self.attention, c.compute_dtype, c.head_dim)
    plan = attention.plan(mask, num_queries, capacity + num_queries)
    keep_kv = cached_kv is not None
    return run_layers(
      self, c, keep_kv, attention.attend, x_BxTxD, keys_B, cached_kv, turns, plan
    )

  def stream_logits(self, stream_BxTxD):
    """`logits` of what `stream` returns: the final norm, then the head."""
    return self.logits(self.final_norm(stream_BxTxD))

  def logits(self, hidden_BxTxD):
    """float32 logits [..., V]; -1e30 for rows of the vocabulary that stand for no token."""
    c = self.config
    if c.mlm_head:
      dtype = hidden_BxTxD.dtype
      x = hidden_BxTxD @ self.dense_kernel.astype(dtype) + self.dense_bias.astype(dtype)
      hidden_BxTxD = self.head_norm(gelu(x))
    head = self.embedding if c.tie_embeddings else self.head
    logits = jnp.einsum(
      "...d,vd->...v",
      hidden_BxTxD,
      head.astype(hidden_BxTxD.dtype),
      preferred_element_type=jnp.float32,
    )
    if c.mlm_head:
      logits = logits + self.head_bias.astype(jnp.float32)
    if c.unused_rows:
      used = jnp.arange(c.vocab_size) < c.vocab_size - c.unused_rows
      logits = jnp.where(used, logits, -1e30)
    return logits
