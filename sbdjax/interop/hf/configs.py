"""config.json -> the network's configuration, and back.

A layout is one way of writing settings (and naming tensors, `names.COLUMNS`); a family is an
architecture: a layout, what is fixed in its network, and how its texts are decoded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypedDict

from sbdjax.errors import CheckpointError, SbdjaxError, UsageError
from sbdjax.foreign import check
from sbdjax.interop.hf import names
from sbdjax.interop.settings import GenerationDefaults
from sbdjax.nn.transformer import TransformerConfig
from sbdjax.settings import field_types, to_dataclass

Settings = Mapping[str, Any]

# Section of config.json for what Hugging Face has no key for.
OURS = "sbdjax"
_OURS = ("unused_rows", "compute_dtype", "product_dtype")


class _Ours(TypedDict, total=False):
  """Section `sbdjax` of config.json."""

  tokenizer: str
  unused_rows: int
  compute_dtype: str
  product_dtype: str
  attention: Literal["block_causal"]
  block_size: int


class _Rope(TypedDict, total=False):
  """rope_scaling or rope_parameters."""

  rope_theta: float | None
  rope_type: str | None
  type: str | None
  factor: float | None
  low_freq_factor: float | None
  high_freq_factor: float | None
  original_max_position_embeddings: int | None


class Written(TypedDict, total=False):
  """Keys of config.json that are read, beside those of `SettingsLayout.keys`."""

  architectures: list[str] | None
  model_type: str | None
  torch_dtype: str | None
  dtype: str | None
  eos_token_id: int | list[int] | None
  bos_token_id: int | list[int] | None
  pad_token_id: int | None
  mask_token_id: int | None
  rope_theta: float | None
  rope_scaling: _Rope | None
  rope_parameters: _Rope | None
  sliding_window: int | None
  use_sliding_window: bool | None
  layer_types: list[str] | None
  attention_bias: bool | None
  mlp_bias: bool | None
  d_model: int | None
  vocab_size: int | None
  embedding_size: int | None
  mlp_hidden_size: int | None
  mlp_ratio: int | float | None
  n_embd: int | None
  n_inner: int | None
  activation_function: str | None
  token_dropout: bool | None
  block_size: int | None
  bd_size: int | None
  sbdjax: _Ours


def check_written(settings: Settings, where: str) -> None:
  """Checks the types of all that is read of a config.json.

  Args:
    where: the file, for messages.

  Raises:
    CheckpointError: naming the first key of another type.
  """
  check(settings, Written, where)
  types = field_types(TransformerConfig)
  for layout in LAYOUTS.values():
    for ours, theirs in layout.keys.items():
      if theirs in settings:
        check(settings[theirs], types[ours] | None, f"{where}: {theirs}")


class SettingsLayout(NamedTuple):
  """How settings are written.

  Attributes:
    keys: our field -> its key.
    defaults: value of a key that is missing or null.
    needs: key -> the values this network can do, where the file says anything but null.
    fixed: fields of TransformerConfig that are the same for all its families.
    derive: (settings, where) -> fields that need more than renaming.
    write: config -> settings, the inverse of `derive`.
  """

  keys: dict[str, str]
  defaults: dict[str, Any]
  needs: dict[str, tuple]
  fixed: dict[str, Any]
  derive: Callable[[Settings, str], dict[str, Any]]
  write: Callable[[TransformerConfig], dict[str, Any]]


def _rope(settings: Settings, where: str) -> dict[str, Any]:
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


def _write_rope(c: TransformerConfig) -> dict[str, Any]:
  if c.rope_scaling is None:
    return dict(rope_theta=c.rope_theta, rope_scaling=None)
  s = c.rope_scaling
  scaling = dict(
    rope_type="llama3",
    factor=s.factor,
    low_freq_factor=s.low_freq_factor,
    high_freq_factor=s.high_freq_factor,
    original_max_position_embeddings=s.original_max_position,
  )
  return dict(rope_theta=c.rope_theta, rope_scaling=scaling)


def _window(settings: Settings) -> float:
  """Positions up to which a sliding window is the same as full attention."""
  window, layers = settings.get("sliding_window"), settings.get("layer_types")
  used = settings.get("use_sliding_window", True)
  used = used and (layers is None or "sliding_attention" in layers)
  return window if used and window else float("inf")


def _derive_llama(settings: Settings, where: str) -> dict[str, Any]:
  bias = bool(settings.get("attention_bias"))
  context = settings.get("max_position_embeddings")
  return _rope(settings, where) | dict(
    qkv_bias=bias,
    o_bias=bias,
    mlp_bias=bool(settings.get("mlp_bias")),
    # Within its window such a model is exact; beyond, this network would see too much.
    max_seq_len=context and min(context, _window(settings)),
  )


def _write_llama(c: TransformerConfig) -> dict[str, Any]:
  return _write_rope(c) | dict(
    hidden_act="silu", attention_bias=c.o_bias, mlp_bias=c.mlp_bias, sliding_window=None
  )


def _derive_llada(settings: Settings, where: str) -> dict[str, Any]:
  ratio, width = settings.get("mlp_ratio") or 4, settings.get("d_model") or 0
  return _rope(settings, where) | dict(
    vocab_size=settings.get("embedding_size") or settings.get("vocab_size"),
    d_ff=settings.get("mlp_hidden_size") or ratio * width,
  )


def _write_llada(c: TransformerConfig) -> dict[str, Any]:
  kept = {key: values[0] for key, values in LAYOUTS["llada"].needs.items() if values}
  return kept | dict(
    rope_theta=c.rope_theta,
    vocab_size=c.vocab_size,
    embedding_size=c.vocab_size,
    mlp_hidden_size=c.d_ff,
  )


_GELUS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}


def _derive_gpt2(settings: Settings, where: str) -> dict[str, Any]:
  del where
  return dict(
    d_ff=settings.get("n_inner") or 4 * (settings.get("n_embd") or 0),
    mlp=_GELUS[settings.get("activation_function") or "gelu_new"],
  )


def _write_gpt2(c: TransformerConfig) -> dict[str, Any]:
  names = {ours: theirs for theirs, ours in reversed(_GELUS.items())}
  return dict(n_inner=c.d_ff, activation_function=names.get(c.mlp))


def _derive_esm(settings: Settings, where: str) -> dict[str, Any]:
  dropout = bool(settings.get("token_dropout"))
  pad_id = settings.get("pad_token_id") if dropout else None
  return _rope(settings, where) | dict(token_dropout=dropout, pad_id=pad_id)


def _write_esm(c: TransformerConfig) -> dict[str, Any]:
  # transformers wants a padding token even where nothing depends on it: that of ESM's alphabet.
  pad_id = c.pad_id if c.token_dropout else 1
  return dict(
    rope_theta=c.rope_theta,
    position_embedding_type="rotary",
    emb_layer_norm_before=False,
    is_folding_model=False,
    token_dropout=c.token_dropout,
    pad_token_id=pad_id,
  )


_BERT_KEYS = dict(
  vocab_size="vocab_size",
  num_layers="num_hidden_layers",
  d_model="hidden_size",
  num_heads="num_attention_heads",
  d_ff="intermediate_size",
  max_seq_len="max_position_embeddings",
  tie_embeddings="tie_word_embeddings",
)
_BIASES = dict(norm="layer", qkv_bias=True, o_bias=True, mlp_bias=True)
_PLAIN = {"quantization_config": (), "add_cross_attention": (False,)}

LAYOUTS: dict[str, SettingsLayout] = {
  "llama": SettingsLayout(
    keys=_BERT_KEYS
    | dict(num_kv_heads="num_key_value_heads", head_dim="head_dim", norm_eps="rms_norm_eps"),
    defaults={"rms_norm_eps": 1e-6, "tie_word_embeddings": False},
    needs=_PLAIN | {"hidden_act": ("silu",), "partial_rotary_factor": (1,), "use_mrope": (False,)},
    fixed={},
    derive=_derive_llama,
    write=_write_llama,
  ),
  "llada": SettingsLayout(
    keys=dict(
      num_layers="n_layers",
      d_model="d_model",
      num_heads="n_heads",
      num_kv_heads="n_kv_heads",
      max_seq_len="max_sequence_length",
      norm_eps="rms_norm_eps",
      tie_embeddings="weight_tying",
    ),
    defaults={"rms_norm_eps": 1e-5, "weight_tying": False},
    needs=_PLAIN
    | {
      "block_type": ("llama",),
      "activation_type": ("silu",),
      "layer_norm_type": ("rms",),
      "layer_norm_with_affine": (True,),
      "rope": (True,),
      "alibi": (False,),
      "include_bias": (False,),
      "include_qkv_bias": (False,),
      "bias_for_layer_norm": (False,),
      "attention_layer_norm": (False,),
      "input_emb_norm": (False,),
      "scale_logits": (False,),
      "clip_qkv": (),
    },
    fixed={},
    derive=_derive_llada,
    write=_write_llada,
  ),
  "gpt2": SettingsLayout(
    keys=dict(
      vocab_size="vocab_size",
      num_layers="n_layer",
      d_model="n_embd",
      num_heads="n_head",
      max_seq_len="n_positions",
      norm_eps="layer_norm_epsilon",
      tie_embeddings="tie_word_embeddings",
    ),
    defaults={"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
    needs=_PLAIN
    | {
      "activation_function": tuple(_GELUS),
      "scale_attn_weights": (True,),
      "scale_attn_by_inverse_layer_idx": (False,),
    },
    fixed=_BIASES | dict(positions="learned"),
    derive=_derive_gpt2,
    write=_write_gpt2,
  ),
  "esm": SettingsLayout(
    keys=_BERT_KEYS | dict(norm_eps="layer_norm_eps"),
    defaults={"layer_norm_eps": 1e-12, "tie_word_embeddings": True},
    needs=_PLAIN
    | {
      "position_embedding_type": ("rotary",),
      "emb_layer_norm_before": (False,),
      "is_folding_model": (False,),
      "is_decoder": (False,),
    },
    fixed=_BIASES | dict(mlp="gelu", mlm_head=True),
    derive=_derive_esm,
    write=_write_esm,
  ),
}


class Family(NamedTuple):
  """What an architecture is beyond its layout.

  Attributes:
    layout: a key of LAYOUTS and of `names.COLUMNS`.
    model_type: as config.json names it.
    fields: fields of TransformerConfig that follow from the architecture.
    attention, shifted: see `GenerationDefaults`.
    masked: it is trained on masks, so it needs a mask token.
    mask_id: the mask token of its public checkpoints, where no file names it.
    block_size: key of its block size, and the value where that is missing.
    head_dim: the value where config.json has none.
    end_of_turn: token that ends an answer beside eos, if the tokenizer knows it.
  """

  layout: str
  model_type: str
  fields: dict[str, Any] = {}
  attention: str = "causal"
  shifted: bool = False
  masked: bool = False
  mask_id: int | None = None
  block_size: tuple[str, int] | None = None
  head_dim: int = 0
  end_of_turn: str = ""


_QWEN2, _QWEN3 = dict(qkv_bias=True), dict(qk_norm=True)
_BLOCKS: dict[str, Any] = dict(attention="block_causal", masked=True)

# By the class that config.json names under "architectures". Of two that write the same network, the
# first is written.
FAMILIES: dict[str, Family] = {
  "LlamaForCausalLM": Family("llama", "llama"),
  "MistralForCausalLM": Family("llama", "mistral"),
  "Qwen2ForCausalLM": Family("llama", "qwen2", _QWEN2),
  "Qwen3ForCausalLM": Family("llama", "qwen3", _QWEN3, head_dim=128),
  "DreamModel": Family(
    "llama",
    "Dream",
    _QWEN2,
    attention="full",
    shifted=True,
    masked=True,
    mask_id=151666,
    end_of_turn="<|im_end|>",
  ),
  "SDARForCausalLM": Family(
    "llama", "sdar", _QWEN3, mask_id=151669, block_size=("block_size", 4), head_dim=128, **_BLOCKS
  ),
  "Fast_dLLM_QwenForCausalLM": Family(
    "llama",
    "Fast_dLLM_Qwen",
    _QWEN2,
    shifted=True,
    mask_id=151665,
    block_size=("bd_size", 32),
    **_BLOCKS,
  ),
  "LLaDAModelLM": Family(
    "llada", "llada", attention="full", masked=True, mask_id=126336, end_of_turn="<|eot_id|>"
  ),
  "GPT2LMHeadModel": Family("gpt2", "gpt2"),
  "EsmForMaskedLM": Family("esm", "esm", attention="full", masked=True),
  "EsmForDPLM": Family("esm", "esm", attention="full", masked=True),
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


def block_size(family: Family, settings: Settings) -> int | None:
  """Of a block-causal family; None for others."""
  if family.block_size is None:
    return None
  key, default = family.block_size
  return int(settings.get(key) or default)


class Trained(NamedTuple):
  """How a checkpoint was trained; see `GenerationDefaults`."""

  attention: str
  shifted: bool
  block_size: int | None


def trained(family: Family, settings: Settings) -> Trained:
  """What our own part of config.json says, else the family."""
  ours = settings.get(OURS, {})
  if "attention" in ours:
    size = ours.get("block_size", 0)
    if size < 1:
      raise CheckpointError(f"config.json: {OURS}: block_size is {size}: it must be 1 or more")
    return Trained(ours["attention"], False, size)
  return Trained(family.attention, family.shifted, block_size(family, settings))


def from_settings(
  family: Family, settings: Settings, *, mask_id: int | None, dtype: str | None, where: str
) -> TransformerConfig:
  """The network of a config.json.

  Args:
    mask_id: the mask token, which other files than config.json may name.
    dtype: of parameters and activations; None: as the file says, else float32.

  Raises:
    CheckpointError: a key is missing, or asks for something this network does not have.
  """
  layout = LAYOUTS[family.layout]
  _check_needs(layout.needs, settings, where)
  defaults = layout.defaults | {"head_dim": family.head_dim}
  fields: dict[str, Any] = {}
  for ours, theirs in layout.keys.items():
    value = settings.get(theirs)
    fields[ours] = defaults.get(theirs) if value is None else value
  fields |= layout.fixed | layout.derive(settings, where) | family.fields
  if fields.get("num_kv_heads") is None:
    fields["num_kv_heads"] = fields["num_heads"]
  missing = [layout.keys.get(name, name) for name, value in fields.items() if _unset(name, value)]
  if missing:
    raise CheckpointError(f"{where}: its config.json does not set {', '.join(missing)}")
  stored = dtype or named_dtype(settings) or "float32"
  own: dict[str, Any] = dict(param_dtype=stored, compute_dtype=stored)
  own |= {name: value for name, value in settings.get(OURS, {}).items() if name in _OURS}
  own["mask_id"] = mask_id
  if dtype is not None:
    own["compute_dtype"] = dtype
  try:
    return to_dataclass(TransformerConfig, fields | own, "model")
  except SbdjaxError as e:
    raise CheckpointError(f"{where} does not describe a model that can be built: {e}") from e


def _unset(name: str, value: Any) -> bool:
  return value is None and name not in ("pad_id", "rope_scaling")


def named_dtype(settings: Settings) -> str | None:
  """The dtype config.json names, if it is one of ours."""
  name = str(settings.get("dtype") or settings.get("torch_dtype")).removeprefix("torch.")
  return name if name in ("float32", "bfloat16", "float16") else None


def _check_needs(needs: Mapping[str, tuple], settings: Settings, where: str) -> None:
  for key, allowed in needs.items():
    value = settings.get(key)
    if value is not None and not any(value == x for x in allowed):
      shown = " or ".join(map(repr, allowed)) or "left out"
      raise CheckpointError(
        f"{where} sets {key}={value!r}, which is not supported: it must be {shown}"
      )


def to_settings(config: TransformerConfig, generation: GenerationDefaults) -> dict[str, Any]:
  """config.json of a model: of the first family that reads back as the very same network.

  Rotary pairs are written in Hugging Face's order (see `save`), and `remat` is no property of a
  checkpoint; everything else must come back. Where a network in causal families was trained with
  blocks, as by block diffusion, that family is written, and our own part says how it was trained.

  Raises:
    UsageError: no architecture has this combination of parts.
  """
  how = Trained(generation.attention, generation.shifted, generation.block_size)
  for family in FAMILIES.items():
    found = _written(*family, config, generation, how)
    if found is not None:
      return found
  if how.attention == "block_causal" and not how.shifted:
    causal = dataclasses.replace(generation, attention="causal", block_size=None)
    for family in FAMILIES.items():
      found = _written(*family, config, causal, Trained("causal", False, None))
      if found is not None:
        ours = dict(attention=how.attention, block_size=how.block_size)
        return found | {OURS: found.get(OURS, {}) | ours}
  raise UsageError(
    "no Hugging Face architecture has this network's combination of norm, MLP, positions, biases "
    f"and attention ({generation.attention}): supported are {', '.join(FAMILIES)}"
  )


def _written(
  architecture: str,
  family: Family,
  config: TransformerConfig,
  generation: GenerationDefaults,
  how: Trained,
) -> dict[str, Any] | None:
  """config.json of a model as one of a family; None where that is another network."""
  if (how.attention, how.shifted) != (family.attention, family.shifted):
    return None
  settings = _write(architecture, family, config, generation)
  try:
    found = from_settings(family, settings, mask_id=config.mask_id, dtype=None, where="")
  except CheckpointError:
    return None
  if names.COLUMNS[family.layout].inv_freq:  # it lies among the tensors
    found = dataclasses.replace(found, rope_frequencies=config.rope_frequencies)
  wanted = dataclasses.replace(config, rope_interleaved=False, remat="none")
  same = found == wanted and block_size(family, settings) == how.block_size
  return settings if same else None


def _write(
  architecture: str, family: Family, config: TransformerConfig, generation: GenerationDefaults
) -> dict[str, Any]:
  layout = LAYOUTS[family.layout]
  settings: dict[str, Any] = {"architectures": [architecture], "model_type": family.model_type}
  settings |= layout.write(config)
  settings |= {theirs: getattr(config, ours) for ours, theirs in layout.keys.items()}
  settings |= dict(
    torch_dtype=config.param_dtype,
    eos_token_id=_one_or_all(generation.eos_ids),
    mask_token_id=config.mask_id,
  )
  if family.block_size is not None:
    settings[family.block_size[0]] = generation.block_size
  ours = {
    name: getattr(config, name)
    for name, usual in zip(_OURS, (0, config.param_dtype, ""), strict=True)
    if getattr(config, name) != usual
  }
  return settings | ({OURS: ours} if ours else {})


def _one_or_all(ids: tuple[int, ...]) -> int | list[int] | None:
  return None if not ids else ids[0] if len(ids) == 1 else list(ids)
