"""config.json -> the network's configuration and what decoding has to know of the family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sbdjax.errors import CheckpointError, SbdjaxError
from sbdjax.nn.transformer import TransformerConfig

Settings = Mapping[str, Any]

# Our field: its key in config.json of each layout (see `names.COLUMNS`).
_KEYS = {
  "vocab_size": ("vocab_size", "embedding_size"),
  "num_layers": ("num_hidden_layers", "n_layers"),
  "d_model": ("hidden_size", "d_model"),
  "num_heads": ("num_attention_heads", "n_heads"),
  "num_kv_heads": ("num_key_value_heads", "n_kv_heads"),
  "head_dim": ("head_dim", None),
  "d_ff": ("intermediate_size", "mlp_hidden_size"),
  "max_seq_len": ("max_position_embeddings", "max_sequence_length"),
  "norm_eps": ("rms_norm_eps", "rms_norm_eps"),
  "tie_embeddings": ("tie_word_embeddings", "weight_tying"),
}
LAYOUTS = ("llama", "llada")
KEYS = {
  layout: {ours: theirs[i] for ours, theirs in _KEYS.items() if theirs[i]}
  for i, layout in enumerate(LAYOUTS)
}

# Values for keys that config.json may leave out or set to null.
DEFAULTS: dict[str, dict[str, Any]] = {
  "llama": {"rms_norm_eps": 1e-6, "tie_word_embeddings": False},
  "llada": {"rms_norm_eps": 1e-5, "weight_tying": False},
}

# What a layout's settings must say (where they say anything): the network here has nothing else.
NEEDS: dict[str, dict[str, tuple]] = {
  "llama": {
    "hidden_act": ("silu",),
    "partial_rotary_factor": (1, 1.0),
    "use_mrope": (False,),
    "quantization_config": (),
  },
  "llada": {
    "block_type": ("llama",),
    "activation_type": ("silu",),
    "layer_norm_type": ("rms",),
    "rope": (True,),
    "alibi": (False,),
    "include_bias": (False,),
    "include_qkv_bias": (False,),
    "bias_for_layer_norm": (False,),
    "attention_layer_norm": (False,),
    "layer_norm_with_affine": (True,),
    "input_emb_norm": (False,),
    "scale_logits": (False,),
    "clip_qkv": (),
    "quantization_config": (),
  },
}


class Family(NamedTuple):
  """What an architecture is beyond its layout.

  Attributes:
    layout: column of the tables of names and keys.
    fields: fields of TransformerConfig that follow from the architecture.
    attention: "causal", "full" or "block_causal".
    shifted: a masked position is predicted by the logits one position before it.
    masked: it is trained on masks, so it needs a mask token.
    mask_id: the mask token where no file names it.
    block_size: key of its block size in config.json, and the value where that is missing.
    head_dim: the value where config.json has none.
  """

  layout: str
  fields: dict[str, Any] = {}
  attention: str = "causal"
  shifted: bool = False
  masked: bool = False
  mask_id: int | None = None
  block_size: tuple[str, int] | None = None
  head_dim: int = 0


_QWEN2 = dict(qkv_bias=True)
_QWEN3 = dict(qk_norm=True)

# By the class that config.json names under "architectures".
FAMILIES: dict[str, Family] = {
  "LlamaForCausalLM": Family("llama"),
  "MistralForCausalLM": Family("llama"),
  "Qwen2ForCausalLM": Family("llama", _QWEN2),
  "Qwen3ForCausalLM": Family("llama", _QWEN3, head_dim=128),
  "DreamModel": Family("llama", _QWEN2, "full", shifted=True, masked=True, mask_id=151666),
  "SDARForCausalLM": Family(
    "llama",
    _QWEN3,
    "block_causal",
    masked=True,
    mask_id=151669,
    block_size=("block_size", 4),
    head_dim=128,
  ),
  "Fast_dLLM_QwenForCausalLM": Family(
    "llama",
    _QWEN2,
    "block_causal",
    shifted=True,
    masked=True,
    mask_id=151665,
    block_size=("bd_size", 32),
  ),
  "LLaDAModelLM": Family("llada", {}, "full", masked=True, mask_id=126336),
}


def family_of(settings: Settings, where: str) -> Family:
  """The family that config.json names.

  Raises:
    CheckpointError: it names none that is supported; the message lists those that are.
  """
  named = settings.get("architectures") or ["nothing"]
  for name in named:
    if name in FAMILIES:
      return FAMILIES[name]
  raise CheckpointError(
    f"{where} is a checkpoint of {', '.join(map(str, named))} (model_type "
    f"{settings.get('model_type')!r}), which is not supported: supported are {', '.join(FAMILIES)}"
  )


def transformer_config(
  family: Family, settings: Settings, dtype: str, where: str
) -> TransformerConfig:
  """The network of a config.json; its mask token is set later, when the tokenizer is known.

  Raises:
    CheckpointError: a key is missing, or asks for something this network does not have.
  """
  check_needs(NEEDS[family.layout], settings, where)
  fields = {}
  defaults = {**DEFAULTS[family.layout], "head_dim": family.head_dim}
  for ours, theirs in KEYS[family.layout].items():
    value = settings.get(theirs)
    value = defaults.get(theirs) if value is None else value
    if value is not None:
      fields[ours] = value
  if family.layout == "llada":
    fields.setdefault("vocab_size", settings.get("vocab_size"))
    fields.setdefault("d_ff", settings.get("mlp_ratio", 4) * settings.get("d_model", 0))
  fields.setdefault("num_kv_heads", fields.get("num_heads"))
  fields |= rope_fields(settings, where)
  fields |= family.fields
  if family.layout == "llama":
    fields["max_seq_len"] = min(fields["max_seq_len"], _window(settings))
  try:
    return TransformerConfig(**fields, param_dtype=dtype, compute_dtype=dtype)
  except (TypeError, SbdjaxError) as e:
    raise CheckpointError(f"{where} does not describe a model that can be built: {e}") from e


def check_needs(needs: Mapping[str, tuple], settings: Settings, where: str):
  """Raises CheckpointError for a setting that the network here does not have."""
  for key, allowed in needs.items():
    value = settings.get(key)
    if value is not None and value not in allowed:
      shown = " or ".join(map(repr, allowed)) or "left out"
      raise CheckpointError(
        f"{where} sets {key}={value!r}, which is not supported: it must be {shown}"
      )


def rope_fields(settings: Settings, where: str) -> dict[str, Any]:
  """rope_theta and rope_scaling, from either way they are written.

  Raises:
    CheckpointError: a rescaling other than llama3's.
  """
  rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
  theta = rope.get("rope_theta") or settings.get("rope_theta") or 10_000.0
  kind = rope.get("rope_type") or rope.get("type") or "default"
  if kind == "default":
    return dict(rope_theta=float(theta))
  if kind != "llama3":
    raise CheckpointError(
      f"{where} asks for rotary positions rescaled by {kind!r}: supported are 'default' and "
      "'llama3'"
    )
  try:
    scaling = dict(
      factor=rope["factor"],
      low_freq_factor=rope["low_freq_factor"],
      high_freq_factor=rope["high_freq_factor"],
      original_max_position=rope["original_max_position_embeddings"],
    )
  except KeyError as e:
    raise CheckpointError(f"{where}: its llama3 rope_scaling lacks {e.args[0]}") from e
  return dict(rope_theta=float(theta), rope_scaling=scaling)


def _window(settings: Settings) -> float:
  """Positions up to which a sliding window is the same as full attention."""
  window = settings.get("sliding_window")
  layers = settings.get("layer_types")
  used = settings.get("use_sliding_window", True)
  if layers is not None:
    used = used and "sliding_attention" in layers
  return window if used and window else float("inf")
