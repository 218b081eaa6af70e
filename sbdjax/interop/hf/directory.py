"""Opens a Hugging Face checkpoint directory."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax

from sbdjax.data import tokenizers
from sbdjax.errors import CheckpointError
from sbdjax.interop.hf import configs, load
from sbdjax.interop.hf.configs import Family
from sbdjax.interop.settings import GenerationDefaults
from sbdjax.lm import LM, make_lm

_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "encoder.json")
_DTYPES = ("float32", "bfloat16", "float16")


def read(
  folder: pathlib.Path, dtype: str | None, shardings: Callable[[Any], Any]
) -> tuple[LM, Any, tokenizers.Tokenizer | None, GenerationDefaults]:
  """Opens `folder`.

  Args:
    folder: holds config.json and safetensors; tokenizer files and generation_config.json if any.
    dtype: of parameters and activations; None: the one config.json names, else the embedding's.
    shardings: tree of shapes -> tree of shardings the parameters are put into.

  Raises:
    CheckpointError: an architecture or setting that is not supported, a tensor that is missing,
      surplus, or of another shape or dtype; truncated files; pickled weights.
    DataError: tokenizer files that cannot be read.
  """
  where = str(folder)
  settings = _json(folder / "config.json")
  family = configs.family_of(settings, where)
  tensors = load.read_folder(folder, family.layout)
  config = configs.transformer_config(family, settings, dtype or _dtype(settings), where)
  tokenizer = _tokenizer(folder)
  mask_id = _mask_id(family, settings, tokenizer, config.vocab_size, where)
  config = dataclasses.replace(config, mask_id=mask_id)
  if tokenizer is not None and mask_id is not None:
    tokenizer.mask_id = mask_id
  lm = make_lm(config)
  abstract = jax.eval_shape(lm.init, jax.random.key(0))
  params = load.load_params(tensors, family.layout, config, abstract, shardings(abstract))
  return lm, params, tokenizer, _generation(family, settings, mask_id, _optional_json(folder))


def _json(path: pathlib.Path) -> dict[str, Any]:
  try:
    found = json.loads(path.read_text("utf-8"))
  except (OSError, ValueError) as e:
    raise CheckpointError(f"cannot read {path}: {e}") from e
  if not isinstance(found, dict):
    raise CheckpointError(f"{path} is no JSON object")
  return found


def _optional_json(folder: pathlib.Path) -> dict[str, Any]:
  path = folder / "generation_config.json"
  return _json(path) if path.is_file() else {}


def _dtype(settings: Mapping[str, Any]) -> str:
  named = str(settings.get("dtype") or settings.get("torch_dtype")).removeprefix("torch.")
  return named if named in _DTYPES else "float32"


def _tokenizer(folder: pathlib.Path) -> tokenizers.Tokenizer | None:
  if any((folder / name).is_file() for name in _TOKENIZER_FILES):
    return tokenizers.load_tokenizer(str(folder))
  return None


def _mask_id(
  family: Family, settings: Mapping[str, Any], tokenizer: Any, vocab_size: int, where: str
) -> int | None:
  """The mask token: config.json's, else the tokenizer's, else the family's."""
  found = settings.get("mask_token_id")
  if found is None and family.masked:
    found = getattr(tokenizer, "mask_id", None)
    found = family.mask_id if found is None else found
  if found is not None and not 0 <= found < vocab_size:
    raise CheckpointError(
      f"{where}: mask token {found} lies outside the vocabulary of {vocab_size}: set "
      "mask_token_id in its config.json"
    )
  return found


def _generation(
  family: Family, settings: Mapping[str, Any], mask_id: int | None, generation: Mapping[str, Any]
) -> GenerationDefaults:
  eos = generation.get("eos_token_id", settings.get("eos_token_id"))
  eos = () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
  block_size = None
  if family.block_size is not None:
    key, default = family.block_size
    block_size = int(settings.get(key) or default)
  return GenerationDefaults(
    eos_ids=eos,
    mask_id=mask_id,
    shifted=family.shifted,
    attention=family.attention,
    block_size=block_size,
  )
