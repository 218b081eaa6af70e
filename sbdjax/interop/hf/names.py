"""The one table of tensor names: ours beside those of each way files of weights are written.

Our leaves are the paths of the parameter tree; those under `layers.` are stacked along a leading
axis N. Theirs end in `.weight`, or `.bias` where ours is a bias; `{}` stands for the layer.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import numpy as np


class Column(NamedTuple):
  """What is common to the tensors of one layout.

  Attributes:
    prefix: may be missing from all names (checkpoints of the bare trunk, the oldest GPT-2 files).
    in_out: matrices are stored [in, out]; otherwise [out, in].
    ignored: names of tensors that follow from the configuration or serve another purpose.
    inv_freq: rotary frequencies that the network takes from the file, where it does.
    settings: what asks for the tensors, as errors call it.
    folded: (a table, another table): the first row of the other one is added to each row of the
      table when it is read, and zeros are written for it. BERT adds the embedding of a token's type
      to that of its position; a text of one segment has type 0 throughout, so nothing changes for
      it, and types of further segments are lost.
    copies: a tensor -> another name of it, which counts where the files hold both. BERT's decoder
      has a bias that transformers ties to `cls.predictions.bias`, unless embeddings are not tied.
  """

  prefix: str
  in_out: bool
  ignored: re.Pattern
  inv_freq: str | None = None
  settings: str = "config.json"
  folded: tuple[str, str] | None = None
  copies: dict[str, str] = {}


# Rows of a table of BERT's token types, where one is written.
TYPES = 2
# LayerNorm's parameters as TensorFlow called them; transformers 5 writes ESM's so again.
_LEGACY = {".gamma": ".weight", ".beta": ".bias"}


def modern(name: str) -> str:
  """A tensor's name with its last part as it is called today."""
  for old, new in _LEGACY.items():
    if name.endswith(old):
      return name.removesuffix(old) + new
  return name


class FusedThird(NamedTuple):
  """A third of a tensor that fuses q, k and v along its outputs."""

  name: str
  third: int


_INV_FREQ = re.compile(r"rotary_emb\.inv_freq$")
COLUMNS = {
  "llama": Column("model.", False, _INV_FREQ),
  "llada": Column("model.", False, _INV_FREQ),
  "gpt2": Column("transformer.", True, re.compile(r"(^|\.)attn\.(masked_)?bias$")),
  "esm": Column(
    "esm.",
    False,
    re.compile(r"contact_head\.|pooler\.|inv_freq$|position_ids$|position_embeddings\.weight$"),
    "esm.encoder.layer.{}.attention.self.rotary_embeddings.inv_freq",
  ),
  "bert": Column(
    "bert.",
    False,
    re.compile(r"pooler\.|position_ids$|cls\.(seq_relationship|species|chain|graft)\."),
    folded=(
      "bert.embeddings.position_embeddings.weight",
      "bert.embeddings.token_type_embeddings.weight",
    ),
    copies={"cls.predictions.bias": "cls.predictions.decoder.bias"},
  ),
  # GGUF of llama.cpp; its rotary factors go into the configuration (`gguf.config`).
  "gguf": Column("", False, re.compile(r"^rope_freqs\.weight$"), settings="metadata"),
  "gguf_gpt2": Column("", False, re.compile("^$"), settings="metadata"),
}

_L, _B, _H = "model.layers.{}.", "model.transformer.blocks.{}.", "transformer.h.{}."
_E, _A = "esm.encoder.layer.{}.", "esm.encoder.layer.{}.attention."
_T, _TA = "bert.encoder.layer.{}.", "bert.encoder.layer.{}.attention."
_TH = "cls.predictions."
_G = "blk.{}."
_QKV = [FusedThird(_H + "attn.c_attn", i) for i in range(3)]
_GQKV = [FusedThird(_G + "attn_qkv", i) for i in range(3)]
# fmt: off
_TABLE: dict[str, tuple[str | FusedThird | None, ...]] = {
  # ours: Llama, Mistral, Qwen, Dream, SDAR, Fast-dLLM; LLaDA; GPT-2; ESM-2; BERT; GGUF; GGUF of GPT-2
  "embedding": ("model.embed_tokens", "model.transformer.wte", "transformer.wte",
                "esm.embeddings.word_embeddings", "bert.embeddings.word_embeddings", "token_embd",
                "token_embd"),
  "position_embedding": (None, None, "transformer.wpe", None, "bert.embeddings.position_embeddings",
                         None, "position_embd"),
  "embedding_norm": (None, None, None, None, "bert.embeddings.LayerNorm", None, None),
  "final_norm": ("model.norm", "model.transformer.ln_f", "transformer.ln_f",
                 "esm.encoder.emb_layer_norm_after", None, "output_norm", "output_norm"),
  "dense": (None, None, None, "lm_head.dense", _TH + "transform.dense", None, None),
  "head_norm": (None, None, None, "lm_head.layer_norm", _TH + "transform.LayerNorm", None, None),
  "head": ("lm_head", "model.transformer.ff_out", "lm_head", "lm_head.decoder", _TH + "decoder",
           "output", "output"),
  "head_bias": (None, None, None, "lm_head", "cls.predictions", None, None),
  "layers.attn_norm": (_L + "input_layernorm", _B + "attn_norm", _H + "ln_1", _A + "LayerNorm",
                       _TA + "output.LayerNorm", _G + "attn_norm", _G + "attn_norm"),
  "layers.attn.q": (_L + "self_attn.q_proj", _B + "q_proj", _QKV[0], _A + "self.query",
                    _TA + "self.query", _G + "attn_q", _GQKV[0]),
  "layers.attn.k": (_L + "self_attn.k_proj", _B + "k_proj", _QKV[1], _A + "self.key",
                    _TA + "self.key", _G + "attn_k", _GQKV[1]),
  "layers.attn.v": (_L + "self_attn.v_proj", _B + "v_proj", _QKV[2], _A + "self.value",
                    _TA + "self.value", _G + "attn_v", _GQKV[2]),
  "layers.attn.o": (_L + "self_attn.o_proj", _B + "attn_out", _H + "attn.c_proj",
                    _A + "output.dense", _TA + "output.dense", _G + "attn_output",
                    _G + "attn_output"),
  "layers.attn.q_norm": (_L + "self_attn.q_norm", None, None, None, None, _G + "attn_q_norm", None),
  "layers.attn.k_norm": (_L + "self_attn.k_norm", None, None, None, None, _G + "attn_k_norm", None),
  "layers.mlp_norm": (_L + "post_attention_layernorm", _B + "ff_norm", _H + "ln_2",
                      _E + "LayerNorm", _T + "output.LayerNorm", _G + "ffn_norm", _G + "ffn_norm"),
  "layers.mlp.gate": (_L + "mlp.gate_proj", _B + "ff_proj", None, None, None, _G + "ffn_gate",
                      None),
  "layers.mlp.up": (_L + "mlp.up_proj", _B + "up_proj", _H + "mlp.c_fc", _E + "intermediate.dense",
                    _T + "intermediate.dense", _G + "ffn_up", _G + "ffn_up"),
  "layers.mlp.down": (_L + "mlp.down_proj", _B + "ff_out", _H + "mlp.c_proj", _E + "output.dense",
                      _T + "output.dense", _G + "ffn_down", _G + "ffn_down"),
}
# fmt: on
TABLE = {ours: dict(zip(COLUMNS, theirs, strict=True)) for ours, theirs in _TABLE.items()}


class Place(NamedTuple):
  """Where one of our leaves lies among their tensors, and in which orientation.

  Attributes:
    name: their tensor; `{}` is the layer.
    part: which third of it is ours, or None for all.
    stacked: ours is the stack of one tensor a layer.
    inner: our shape, without the stacking axis.
    num_inputs: leading axes of a kernel that are its inputs; 0 for everything else.
    transposed: it is stored [out, in], ours [in, out].
  """

  name: str
  part: int | None
  stacked: bool
  inner: tuple[int, ...]
  num_inputs: int
  transposed: bool

  def of_layer(self, layer: int) -> str:
    """The tensor's name in one layer."""
    return self.name.format(layer)

  @property
  def _matrix(self) -> tuple[int, ...]:
    """Ours with inputs and outputs flattened; vectors flat, tables as they are."""
    if self.num_inputs:
      split = self.inner[: self.num_inputs], self.inner[self.num_inputs :]
      return tuple(math.prod(axes) for axes in split)
    return self.inner if not self.stacked else (math.prod(self.inner),)

  @property
  def shape(self) -> tuple[int, ...]:
    """Of their tensor, all parts together."""
    *inputs, outputs = self._matrix
    shape = (*inputs, outputs if self.part is None else 3 * outputs)
    return shape[::-1] if self.transposed else shape

  def to_ours(self, theirs: np.ndarray) -> np.ndarray:
    """Their tensor as one layer of ours, without a copy (reshaping only splits axes)."""
    x = theirs.T if self.transposed else theirs
    x = x if self.part is None else np.split(x, 3, axis=-1)[self.part]
    return x.reshape(self.inner)

  def to_theirs(self, ours: np.ndarray) -> np.ndarray:
    """One layer of ours as (our part of) their tensor."""
    x = ours.reshape(self._matrix)
    return x.T if self.transposed else x


def find(leaf: str, shape: tuple[int, ...], layout: str) -> Place | None:
  """The place of our `leaf` ("layers.attn.q_kernel") of `shape` in `layout`, or None."""
  suffix = re.search(r"[._](kernel|bias|scale)$", leaf)
  base, kind = (leaf[: suffix.start()], suffix[1]) if suffix else (leaf, None)
  entry = TABLE.get(leaf, TABLE.get(base, {})).get(layout)
  if entry is None:
    return None
  name, part = entry if isinstance(entry, FusedThird) else (entry, None)
  kernel, stacked = kind == "kernel", leaf.startswith("layers.")
  return Place(
    name=name + (".bias" if kind == "bias" else ".weight"),
    part=part,
    stacked=stacked,
    inner=tuple(shape[1:] if stacked else shape),
    num_inputs=0 if not kernel else 2 if base.endswith(".o") else 1,
    transposed=kernel and not COLUMNS[layout].in_out,
  )
