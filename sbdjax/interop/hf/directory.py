"""Opens a Hugging Face checkpoint directory."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax

from sbdjax.data import tokenizers
from sbdjax.errors import CheckpointError
from sbdjax.interop.hf import configs, files, load
from sbdjax.interop.hf.configs import Family
from sbdjax.interop.settings import GenerationDefaults
from sbdjax.lm import LM, make_lm

CONFIG, GENERATION = "config.json", "generation_config.json"
_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "encoder.json")


def read(
  folder: pathlib.Path, dtype: str | None, shardings: Callable[[Any], Any]
) -> tuple[LM, Any, tokenizers.Tokenizer | None, GenerationDefaults]:
  """Opens `folder`.

  Args:
    folder: holds config.json and safetensors; tokenizer files and generation_config.json if any.
    dtype: of parameters and activations; None: the one config.json names, else float32.
    shardings: tree of shapes -> tree of shardings the parameters are put into.

  Raises:
    CheckpointError: an architecture or setting that is not supported, a tensor that is missing,
      surplus, or of another shape or dtype; truncated files; pickled weights.
    DataError: tokenizer files that cannot be read.
  """
  where = str(folder)
  settings = read_json(folder / CONFIG)
  family = configs.family_of(settings, where)
  tensors = load.Tensors(files.read_folder(folder), family.layout, where)
  tokenizer = _tokenizer(folder)
  mask_id = _mask_id(family, settings, tokenizer)
  config = configs.from_settings(family, settings, mask_id=mask_id, dtype=dtype, where=where)
  if tokenizer is not None and mask_id is not None:
    tokenizer.mask_id = mask_id
  lm = make_lm(config)
  abstract = jax.eval_shape(lm.init, jax.random.key(0))
  params = load.load_params(tensors, abstract, shardings(abstract), config.tie_embeddings)
  generation = read_json(folder / GENERATION) if (folder / GENERATION).is_file() else {}
  defaults = GenerationDefaults(
    eos_ids=_eos_ids(family, settings, generation, tokenizer),
    mask_id=mask_id,
    shifted=family.shifted,
    attention=family.attention,
    block_size=configs.block_size(family, settings),
  )
  return lm, params, tokenizer, defaults


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """A JSON object. Raises CheckpointError where `path` is none."""
  try:
    found = json.loads(path.read_text("utf-8"))
  except (OSError, ValueError) as e:
    raise CheckpointError(f"cannot read {path}: {e}") from e
  if not isinstance(found, dict):
    raise CheckpointError(f"{path} is no JSON object")
  return found


def _tokenizer(folder: pathlib.Path) -> tokenizers.Tokenizer | None:
  if any((folder / name).is_file() for name in _TOKENIZER_FILES):
    return tokenizers.load_tokenizer(str(folder))
  return None


def _mask_id(family: Family, settings: Mapping[str, Any], tokenizer: Any) -> int | None:
  """The mask token: config.json's, else the tokenizer's, else the family's."""
  found = settings.get("mask_token_id")
  if found is None and family.masked:
    found = getattr(tokenizer, "mask_id", None)
    found = family.mask_id if found is None else found
  return found


def _eos_ids(
  family: Family, settings: Mapping[str, Any], generation: Mapping[str, Any], tokenizer: Any
) -> tuple[int, ...]:
  """Those of generation_config.json, else config.json's, else the tokenizer's; and end of turn."""
  found = generation.get("eos_token_id", settings.get("eos_token_id"))
  found = getattr(tokenizer, "eos_id", None) if found is None else found
  ids = [] if found is None else [found] if isinstance(found, int) else list(found)
  del family
  return tuple(ids)
