"""Shape and numerics of the network, checked where they are set."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax

from sbdjax.errors import UsageError
from sbdjax.kernels import backend, flash
from sbdjax.nn import rope
from sbdjax.nn.adapter import AdapterConfig
from sbdjax.settings import to_dataclass

_keep = jax.checkpoint_policies
_KEEP_ATTENTION = _keep.save_only_these_names(flash.OUTPUT, flash.LOG_SUM_EXP)
# What backward may keep of a layer. "none": everything; "full": nothing but the layer's input;
# "attention": what the attention kernels give, so that they do not run twice (with plain XLA,
# of long texts only); "dots": that, and results of weight products (not of attention's batched ones).
REMAT_POLICIES = {
  "none": None,
  "full": _keep.nothing_saveable,
  "attention": _KEEP_ATTENTION,
  "dots": _keep.save_from_both_policies(_keep.dots_with_no_batch_dims_saveable, _KEEP_ATTENTION),
}
# Some times the largest networks there are; what is beyond is a mistake or a damaged file.
LARGEST = {
  "vocab_size": 1 << 24,
  "num_layers": 1 << 12,
  "d_model": 1 << 20,
  "num_heads": 1 << 14,
  "num_kv_heads": 1 << 14,
  "d_ff": 1 << 22,
  "max_seq_len": (1 << 31) - 1,
  "head_dim": 1 << 14,
}
_CHOICES = {
  "norm": ("rms", "layer"),
  "norm_order": ("pre", "post"),
  "mlp": ("swiglu", "gelu", "gelu_tanh"),
  "positions": ("rotary", "learned"),
  "param_dtype": ("float32", "bfloat16", "float16"),
  "compute_dtype": ("float32", "bfloat16", "float16"),
  "product_dtype": ("", "float32", "bfloat16", "float16"),
  "remat": tuple(REMAT_POLICIES),
}


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """Shape and numerics of the network.

  The defaults are those of Llama; what other families need are the fields that say so. How
  attention is computed belongs to the run, not to the model: it is an argument of `lm.make_lm`.

  Attributes:
    vocab_size: rows of the embedding, those of the mask token and of padding included.
    num_layers: transformer layers, N.
    d_model: width of the hidden states, D.
    num_heads: attention heads, H.
    num_kv_heads: heads of keys and values, K, which divides H (grouped-query attention).
    d_ff: hidden width of the feed-forward part.
    max_seq_len: positions the model is meant for; decoding refuses longer ones.
    head_dim: width of a head, Dh; 0 means d_model / num_heads.
    rope_theta: base of the rotary frequencies.
    rope_scaling: llama-3 rescaling; a RopeScaling, a mapping of its fields, or None.
    rope_interleaved: rotate pairs (2i, 2i+1) (llama2.c) instead of (i, i + Dh/2) (Hugging Face).
    norm_eps: of every norm.
    tie_embeddings: the output head is the transposed embedding.
    qkv_bias: biases on q, k, v (Qwen2, GPT-2, ESM-2).
    qk_norm: RMSNorm over each head's q and k before the rotation (Qwen3).
    mask_id: id of the mask token, or None for a model without one. It can be an input, never a
      prediction: `LM.logits` leaves it out.
    param_dtype: dtype parameters are stored in.
    compute_dtype: dtype of activations; norms, softmax and logits are float32 always.
    product_dtype: dtype that activations and weights are rounded to where they are multiplied; the
      sum is float32 at least. "": `compute_dtype`. Attention is not rounded.
    remat: what the backward pass may keep of a layer: "none", "dots", "attention" or "full".
    norm: "rms", or "layer" for LayerNorm with scale and bias (GPT-2, ESM-2, BERT).
    norm_order: "pre": x + sublayer(norm(x)), and a final norm after the last layer; "post":
      norm(x + sublayer(x)) without a final norm (BERT), so that what leaves a layer is normed.
    embedding_norm: a norm of the embeddings, positions included, before the first layer (BERT).
    mlp: "swiglu", or a plain two-layer MLP with "gelu" (ESM-2, BERT) or its tanh form "gelu_tanh" (GPT-2).
    positions: "rotary", or "learned" for an embedding of `max_seq_len` rows (GPT-2, BERT).
    o_bias: bias on the output of attention (GPT-2, ESM-2, BERT).
    mlp_bias: biases in the MLP (GPT-2, ESM-2, BERT).
    mlm_head: logits = W norm(gelu(dense h)) + bias instead of W h (ESM-2, BERT).
    token_dropout: mask tokens enter as zeros and the others are scaled by 0.88 / (1 - share of
      masks), so that the sum keeps its size (ESM-2; at inference too). Needs the whole text in one
      forward, hence no cache.
    pad_id: padding of `token_dropout`: counts as no token, and enters as zeros.
    rope_frequencies: radians a position of each rotary pair, where they do not follow from theta
      (ESM-2's were rounded to half precision in training); Dh/2 numbers, or None.
    unused_rows: rows at the end of the vocabulary that stand for no token (so that it can be cut
      evenly between devices); they are never predicted.
    dropout: probability that a channel of what a layer's attention or MLP adds is dropped, where
      training asks for it (`LM.dropping`); nothing is dropped otherwise.
    adapter: low-rank updates of the tokens of open blocks (`nn.adapter`); an AdapterConfig, a mapping
      of its fields, or None.
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
  product_dtype: str = ""
  remat: str = "none"
  norm: str = "rms"
  mlp: str = "swiglu"
  positions: str = "rotary"
  o_bias: bool = False
  mlp_bias: bool = False
  mlm_head: bool = False
  token_dropout: bool = False
  pad_id: int | None = None
  rope_frequencies: tuple[float, ...] | None = None
  unused_rows: int = 0
  dropout: float = 0.0
  adapter: AdapterConfig | None = None
  norm_order: str = "pre"
  embedding_norm: bool = False

  @property
  def precision(self) -> str:
    """Its numerics, as records name them: of activations, and of products where that differs."""
    if self.product_dtype in ("", self.compute_dtype):
      return self.compute_dtype
    return f"{self.compute_dtype}, products in {self.product_dtype}"

  def __post_init__(self) -> None:
    sizes = ("vocab_size", "num_layers", "d_model", "num_heads", "num_kv_heads", "d_ff")
    for name in (*sizes, "max_seq_len"):
      if getattr(self, name) < 1:
        raise UsageError(f"model.{name} must be at least 1, got {getattr(self, name)}")
    for name, most in LARGEST.items():
      if getattr(self, name) > most:
        raise UsageError(f"model.{name}={getattr(self, name)} is too large: at most {most}")
    for name, known in _CHOICES.items():
      if getattr(self, name) not in known:
        raise UsageError(f"model.{name}={getattr(self, name)!r}: choose one of {known}")
    self._resolve_heads()
    for name in ("rope_theta", "norm_eps"):
      if not 0 < getattr(self, name) < math.inf:
        raise UsageError(f"model.{name}={getattr(self, name)} must be positive and finite")
    if not 0 <= self.dropout < 1:
      raise UsageError(f"model.dropout={self.dropout} must lie in [0, 1)")
    if isinstance(self.rope_scaling, dict):
      object.__setattr__(self, "rope_scaling", rope.RopeScaling(**self.rope_scaling))
    if self.rope_frequencies is not None:
      object.__setattr__(self, "rope_frequencies", tuple(map(float, self.rope_frequencies)))
      if len(self.rope_frequencies) != self.head_dim // 2:
        raise UsageError(
          f"model.rope_frequencies has {len(self.rope_frequencies)} numbers; heads of "
          f"{self.head_dim} channels have {self.head_dim // 2} pairs"
        )
    if not 0 <= self.unused_rows < self.vocab_size:
      raise UsageError(
        f"model.unused_rows={self.unused_rows} leaves no token of a vocabulary of {self.vocab_size}"
      )
    for name in ("mask_id", "pad_id"):
      value, tokens = getattr(self, name), self.vocab_size - self.unused_rows
      if value is not None and not 0 <= value < tokens:
        raise UsageError(f"model.{name}={value} lies outside the vocabulary of {tokens}")
    if self.token_dropout and self.mask_id is None:
      raise UsageError("model.token_dropout needs model.mask_id")
    if self.pad_id is not None and not self.token_dropout:
      raise UsageError("model.pad_id has no effect without model.token_dropout")
    self._resolve_adapter()

  def _resolve_adapter(self) -> None:
    if isinstance(self.adapter, dict):
      object.__setattr__(self, "adapter", AdapterConfig(**self.adapter))
    if self.adapter is None:
      return
    if self.mask_id is None:
      raise UsageError(
        "model.adapter drafts for masks, and this model has no mask token: set init.mask_token or "
        "model.mask_id"
      )
    if self.token_dropout:
      raise UsageError("model.adapter has no effect with model.token_dropout: masks enter as zeros")
    object.__setattr__(self, "adapter", self.adapter.of_model(gated=self.mlp == "swiglu"))

  def _resolve_heads(self) -> None:
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
    if self.head_dim < 1 or (self.positions == "rotary" and self.head_dim % 2):
      raise UsageError(
        f"model.head_dim={self.head_dim} must be positive, and even for rotary positions"
      )


def check_attention(name: str, where: str = "attention") -> str:
  """`name`, which says how attention is computed.

  Args:
    name: one of `kernels.backend.NAMES`.
    where: what to call it in the message.

  Raises:
    UsageError: any other name.
  """
  if name not in backend.NAMES:
    raise UsageError(f"{where}={name!r}: choose one of {', '.join(backend.NAMES)}")
  return name


def from_record(fields: Mapping[str, Any]) -> TransformerConfig:
  """The configuration of fields that a checkpoint records.

  Checkpoints written before attention became a setting of the run record `attention_backend` too.

  Raises:
    TypeError: no mapping.
    UsageError: fields this version does not know, of another type, or values out of range.
  """
  if not isinstance(fields, Mapping):
    raise TypeError(f"a model is recorded as a mapping of its fields, not {fields!r}")
  known = {name: value for name, value in fields.items() if name != "attention_backend"}
  return to_dataclass(TransformerConfig, known, "model")


def need_mask_token(config: TransformerConfig, why: str) -> int:
  """The mask token of a model.

  Args:
    config: of the model.
    why: what that means for the user, like "set model.mask_id".

  Raises:
    UsageError: it has none.
  """
  if config.mask_id is None:
    raise UsageError(f"this model has no mask token: {why}")
  return config.mask_id
