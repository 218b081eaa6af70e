"""The one table of tensor names: ours beside those of each way Hugging Face files are written.

Our leaves are the paths of the parameter tree; those under `layers.` are stacked along a leading
axis N. Theirs end in `.weight`, or `.bias` where ours is a bias; `{}` stands for the layer.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Column(NamedTuple):
  """What is common to the tensors of one layout.

  Attributes:
    prefix: may be missing from all names (checkpoints of the bare trunk, the oldest GPT-2 files).
    in_out: matrices are stored [in, out]; otherwise [out, in].
    ignored: names of tensors that follow from the configuration or serve another purpose.
  """

  prefix: str
  in_out: bool
  ignored: re.Pattern


class Part(NamedTuple):
  """A third of a tensor that fuses q, k and v along its last axis."""

  name: str
  index: int


COLUMNS = {
  "llama": Column("model.", False, re.compile(r"rotary_emb\.inv_freq$")),
  "llada": Column("model.", False, re.compile(r"rotary_emb\.inv_freq$")),
}

# ours: (Llama, Mistral, Qwen, Dream, SDAR, Fast-dLLM), LLaDA
_L, _B = "model.layers.{}.", "model.transformer.blocks.{}."
_TABLE: dict[str, tuple[str | Part | None, ...]] = {
  "embedding": ("model.embed_tokens", "model.transformer.wte"),
  "final_norm": ("model.norm", "model.transformer.ln_f"),
  "head": ("lm_head", "model.transformer.ff_out"),
  "layers.attn_norm": (_L + "input_layernorm", _B + "attn_norm"),
  "layers.attn.q": (_L + "self_attn.q_proj", _B + "q_proj"),
  "layers.attn.k": (_L + "self_attn.k_proj", _B + "k_proj"),
  "layers.attn.v": (_L + "self_attn.v_proj", _B + "v_proj"),
  "layers.attn.o": (_L + "self_attn.o_proj", _B + "attn_out"),
  "layers.attn.q_norm": (_L + "self_attn.q_norm", None),
  "layers.attn.k_norm": (_L + "self_attn.k_norm", None),
  "layers.mlp_norm": (_L + "post_attention_layernorm", _B + "ff_norm"),
  "layers.mlp.gate": (_L + "mlp.gate_proj", _B + "ff_proj"),
  "layers.mlp.up": (_L + "mlp.up_proj", _B + "up_proj"),
  "layers.mlp.down": (_L + "mlp.down_proj", _B + "ff_out"),
}
TABLE = {ours: dict(zip(COLUMNS, theirs, strict=True)) for ours, theirs in _TABLE.items()}


class Theirs(NamedTuple):
  """Where one of our leaves comes from.

  Attributes:
    name: their tensor; `{}` is the layer.
    part: which third of it, or None for all.
    transposed: it is stored [out, in], ours [in, out].
  """

  name: str
  part: int | None
  transposed: bool

  def of_layer(self, layer: int) -> str:
    """The tensor's name in one layer."""
    return self.name.format(layer)


def find(leaf: str, layout: str) -> Theirs | None:
  """What our `leaf` ("layers.attn.q_kernel") is called in `layout`, or None if nothing there is."""
  base, kind = re.fullmatch(r"(.*?)(?:[._](kernel|bias|scale))?", leaf).groups()
  entry = TABLE.get(base, {}).get(layout)
  if entry is None:
    return None
  name, part = entry if isinstance(entry, Part) else (entry, None)
  suffix = ".bias" if kind == "bias" else ".weight"
  return Theirs(name + suffix, part, kind == "kernel" and not COLUMNS[layout].in_out)
