"""The one transformer of every family, layers stacked and scanned.

Nothing here is causal or bidirectional: the mask decides. Parameters are one nested dict whose
layer leaves carry a leading axis N, so compile time does not grow with depth.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from sbdjax.errors import UsageError
from sbdjax.kernels import backend
from sbdjax.masks import Mask, num_open
from sbdjax.nn import adapter, prepare, rope
from sbdjax.nn.config import REMAT_POLICIES, TransformerConfig
from sbdjax.nn.embedding import drop_masked
from sbdjax.nn.layers import CachedKV, over_arrays, run_layers
from sbdjax.nn.linear import linear, to_vocabulary
from sbdjax.nn.parts import dense_init, gelu, make_norm

__all__ = ["REMAT_POLICIES", "Transformer", "TransformerConfig"]


class Transformer(nn.Module):
  """Tokens to final hidden states; `logits` maps those to the vocabulary where asked.

  Attributes:
    attention: how attention is computed, one of `kernels.backend.NAMES`. Parameters do not depend
      on it, and making them with plain XLA needs no kernels.
  """

  config: TransformerConfig
  attention: str = "xla"

  def setup(self) -> None:
    c = self.config
    shape, init = (c.vocab_size, c.d_model), dense_init(c.d_model)
    self.embedding = self.param("embedding", init, shape, c.param_dtype)
    if not c.tie_embeddings:
      self.head = self.param("head", init, shape, c.param_dtype)
    if c.positions == "learned":
      rows = (c.max_seq_len, c.d_model)
      self.position_embedding = self.param("position_embedding", init, rows, c.param_dtype)
    if c.adapter is not None:
      self.mask_embedding = self.param(adapter.MASK_EMBEDDING, init, (c.d_model,), adapter.DTYPE)
    if c.embedding_norm:
      self.embedding_norm = make_norm(c)
    if c.norm_order == "pre":
      self.final_norm = make_norm(c)
    if c.mlm_head:
      zeros = nn.initializers.zeros
      self.dense_kernel = self.param("dense_kernel", init, (c.d_model, c.d_model), c.param_dtype)
      self.dense_bias = self.param("dense_bias", zeros, (c.d_model,), c.param_dtype)
      self.head_norm = make_norm(c)
      self.head_bias = self.param("head_bias", zeros, (c.vocab_size,), c.param_dtype)

  def embed(self, tokens_BxT: jax.Array) -> jax.Array:
    """The rows of the embedding alone, [B, T, D]: no positions, nothing scaled."""
    return jnp.take(self.embedding, tokens_BxT, axis=0).astype(self.config.compute_dtype)

  def _embed(
    self, tokens_BxT: jax.Array, positions_BxT: jax.Array, cached: bool, opened: int
  ) -> jax.Array:
    c = self.config
    x_BxTxD = self.embed(tokens_BxT)
    if opened:
      x_BxTxD = self._embed_masks(x_BxTxD, tokens_BxT, opened)
    if c.token_dropout:
      if cached:
        raise UsageError(
          "this model scales its input by the share of masks in the whole text "
          "(token_dropout), so it cannot be decoded with a cache"
        )
      assert c.mask_id is not None  # as the configuration checks
      x_BxTxD = drop_masked(x_BxTxD, tokens_BxT, c.mask_id, c.pad_id)
    if c.positions == "learned":
      # Scratch beyond the end must stay finite, though nothing that counts may look at it.
      rows = jnp.take(self.position_embedding, positions_BxT, axis=0, mode="clip")
      x_BxTxD = x_BxTxD + rows.astype(x_BxTxD.dtype)
    return self.embedding_norm(x_BxTxD) if c.embedding_norm else x_BxTxD

  def _embed_masks(self, x_BxTxD: jax.Array, tokens_BxT: jax.Array, opened: int) -> jax.Array:
    """`x`, in which masks among the last `opened` tokens are the adapter's embedding of them."""
    first = x_BxTxD.shape[1] - opened
    is_mask = tokens_BxT[:, first:, None] == self.config.mask_id
    own = self.mask_embedding.astype(x_BxTxD.dtype)
    return adapter.on_open(x_BxTxD, jnp.where(is_mask, own, x_BxTxD[:, first:]))

  def __call__(
    self,
    tokens_BxT: jax.Array,
    positions_BxT: jax.Array,
    mask: Mask,
    cached_kv: CachedKV | None,
    keys_B: jax.Array | None = None,
  ) -> tuple[jax.Array, tuple[jax.Array, jax.Array] | None]:
    """Runs the layers and the final norm, if there is one (`norm_order`).

    Args:
      tokens_BxT: int32 token ids.
      positions_BxT: int32 positions.
      mask: rule over [cache slots | T tokens].
      cached_kv: None, or ((k,), (v,)) with k, v of [N, B, K, S, Dh].
      keys_B: of dropout, one per row; None: nothing is dropped.

    Returns:
      hidden [B, T, D] after the last norm, and None or this forward's (k, v), each
      [N, B, K, T, Dh].

    Raises:
      UsageError: a cache for a model with token dropout.
    """
    x_BxTxD, kv = self.stream(tokens_BxT, positions_BxT, mask, cached_kv, keys_B)
    x_BxTxD = self._finish(x_BxTxD)
    if self.config.mlm_head and self.is_initializing():
      self.logits(x_BxTxD)  # a norm's parameters come into being where it is first called
    return x_BxTxD, kv

  def _finish(self, stream_BxTxD: jax.Array) -> jax.Array:
    """The final norm; a stream of post-norm layers is normed already."""
    return self.final_norm(stream_BxTxD) if self.config.norm_order == "pre" else stream_BxTxD

  @nn.compact
  def stream(
    self,
    tokens_BxT: jax.Array,
    positions_BxT: jax.Array,
    mask: Mask,
    cached_kv: CachedKV | None,
    keys_B: jax.Array | None = None,
  ) -> tuple[jax.Array, tuple[jax.Array, jax.Array] | None]:
    """As `__call__`, but the residual stream as the last layer leaves it, before the final norm.

    With `norm_order="post"` that is after the last layer's own norm: what `__call__` gives.
    """
    c = self.config
    num_queries = tokens_BxT.shape[1]
    opened = 0 if c.adapter is None else num_open(mask, num_queries)
    x_BxTxD = self._embed(tokens_BxT, positions_BxT, cached_kv is not None, opened)
    rotary = None
    if c.positions == "rotary":
      rotary = (rope.rotation(positions_BxT, rope.frequencies_of(c)),) * 2
    capacity = 0 if cached_kv is None else cached_kv[0][0].shape[3]
    attention = backend.get(self.attention, c.compute_dtype, c.head_dim)
    plan = attention.plan(mask, num_queries, capacity + num_queries)
    # A rule of training over a cache says so; all others over a cache are of decoding.
    differentiated = getattr(mask, "differentiated", False)
    attend = over_arrays(attention.attend) if differentiated else attention.attend
    return run_layers(
      self,
      c,
      attend,
      x_BxTxD,
      keys_B=keys_B,
      cached_kv=cached_kv,
      rotary=rotary,
      plan=plan,
      num_open=opened,
    )

  def stream_logits(self, stream_BxTxD: jax.Array) -> jax.Array:
    """`logits` of what `stream` returns: the final norm, if there is one, then the head."""
    return self.logits(self._finish(stream_BxTxD))

  def logits(self, hidden_BxTxD: jax.Array) -> jax.Array:
    """float32 logits [..., V]; -1e30 for rows of the vocabulary that stand for no token."""
    c = self.config
    if c.mlm_head:
      dtype = hidden_BxTxD.dtype
      x = linear(hidden_BxTxD, self.dense_kernel.astype(dtype), c.product_dtype)
      x = x + self.dense_bias.astype(dtype)
      hidden_BxTxD = self.head_norm(gelu(x))
    prepared: prepare.Head | None = self.get_variable("params", prepare.HEAD)
    if prepared is not None:
      logits = prepared.logits(hidden_BxTxD, c.product_dtype)
    else:
      head = self.embedding if c.tie_embeddings else self.head
      logits = to_vocabulary(hidden_BxTxD, head, c.product_dtype)
    if c.mlm_head:
      logits = logits + self.head_bias.astype(jnp.float32)
    if c.unused_rows:
      used = jnp.arange(c.vocab_size) < c.vocab_size - c.unused_rows
      logits = jnp.where(used, logits, -1e30)
    return logits
