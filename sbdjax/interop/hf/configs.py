"""config.json -> the network's configuration, and back, as the table in `families` says."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypedDict

from sbdjax.errors import CheckpointError, SbdjaxError, UsageError
from sbdjax.foreign import check
from sbdjax.interop.hf import names
from sbdjax.interop.hf.families import FAMILIES, LAYOUTS, Family, Settings
from sbdjax.interop.settings import GenerationDefaults
from sbdjax.nn.transformer import TransformerConfig
from sbdjax.settings import field_types, to_dataclass

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
  # What no file has to say: how rotary pairs are ordered, and what training alone does.
  wanted = dataclasses.replace(config, rope_interleaved=False, remat="none", dropout=0.0)
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
