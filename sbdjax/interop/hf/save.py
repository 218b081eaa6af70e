"""Writes a model as a Hugging Face directory: config, sharded safetensors, tokenizer, generation."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from sbdjax.data import tokenizers
from sbdjax.data.bpe_tokenizer import LibraryTokenizer, bos_is_unsaid
from sbdjax.errors import CheckpointError, UsageError
from sbdjax.interop.hf import configs, families, generation_config, names, tensor_files
from sbdjax.interop.hf.tensor_files import CONFIG, GENERATION, ToWrite, read_json
from sbdjax.interop.settings import GenerationDefaults
from sbdjax.nn import rope
from sbdjax.nn.transformer import TransformerConfig

MAX_SHARD_BYTES = 5_000_000_000
# The text of a mask token that the vocabulary has none for.
MASK_TOKEN = "<|mask|>"
# Leaves whose channels are paired by the rotation.
_ROTATED = re.compile(r"attn\.[qk](_kernel|_bias|_norm\.scale)$")


def write(
  folder: str | os.PathLike,
  config: TransformerConfig,
  params: Mapping[str, Any],
  tokenizer: tokenizers.Tokenizer | None,
  generation: GenerationDefaults,
  max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
  """Writes a checkpoint directory, whole or not at all, one tensor in memory at a time.

  Args:
    folder: must not exist, or be empty.
    params: arrays this process can read whole, in `config.param_dtype`.
    max_shard_bytes: a file holds at most so much, unless one tensor is larger.

  Raises:
    UsageError: `folder` is taken, or no Hugging Face architecture is this network.
    CheckpointError: it cannot be written.
  """
  folder = pathlib.Path(folder).expanduser()
  settings = configs.to_settings(config, generation)
  layout = families.FAMILIES[settings["architectures"][0]].layout
  settings["bos_token_id"] = getattr(tokenizer, "bos_id", None)
  tensors = _tensors(config, params, layout)
  with new_folder(folder) as temporary:
    if tokenizer is not None:
      builtin = tokenizers.save(tokenizer, temporary)
      if builtin:
        settings.setdefault(configs.OURS, {})["tokenizer"] = builtin
      _name_mask_token(temporary, tokenizer, config.mask_id)
      if isinstance(tokenizer, LibraryTokenizer) and bos_is_unsaid(temporary):
        if tokenizer.add_bos != tokenizer.begins_with_bos():
          settings.setdefault(configs.OURS, {})["add_bos"] = tokenizer.add_bos
    _write_json(temporary / CONFIG, settings)
    _write_json(temporary / GENERATION, generation_config.write(settings, generation))
    _write_shards(temporary, tensors, max_shard_bytes)


def _name_mask_token(
  folder: pathlib.Path, tokenizer: tokenizers.Tokenizer, mask_id: int | None
) -> None:
  """Lets tokenizer_config.json name the mask token; one that is a new row joins the vocabulary."""
  if not isinstance(tokenizer, LibraryTokenizer) or mask_id is None:
    return
  text = tokenizer.token_text(mask_id) or _joined(folder, tokenizer, mask_id)
  if text is not None:
    path = folder / "tokenizer_config.json"
    found = read_json(path) if path.is_file() else {}
    if not found.get("mask_token"):
      _write_json(path, found | {"mask_token": text})


def _joined(folder: pathlib.Path, tokenizer: LibraryTokenizer, token_id: int) -> str | None:
  """Adds a special token to tokenizer.json; None where that would give it another id."""
  file = folder / "tokenizer.json"
  library = tokenizer.extended(MASK_TOKEN, token_id, file if file.is_file() else None)
  if library is None:
    return None
  library.save(str(file))
  return MASK_TOKEN


@contextlib.contextmanager
def new_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """A folder beside `folder` that gets its name once everything is in it.

  Raises:
    UsageError: `folder` is taken.
    CheckpointError: it cannot be written.
  """
  if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
    raise UsageError(f"{folder} exists already: name a new or empty folder")
  temporary = None
  try:
    folder.parent.mkdir(parents=True, exist_ok=True)
    # A name that nobody has: what lies beside it is not ours to delete.
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    yield temporary
    temporary.chmod(0o777 & ~_umask())
    temporary.replace(folder)
  except OSError as e:
    raise CheckpointError(f"cannot write {folder}: {e.strerror or e}") from e
  finally:
    if temporary is not None:
      shutil.rmtree(temporary, ignore_errors=True)


def _umask() -> int:
  """Bits that new folders do not get; it can only be read by setting it."""
  mask = os.umask(0o077)
  os.umask(mask)
  return mask


def _write_json(path: pathlib.Path, value: Mapping[str, Any]) -> None:
  path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", "utf-8")


def _tensors(
  config: TransformerConfig, params: Mapping[str, Any], layout: str
) -> dict[str, ToWrite]:
  """Their tensors by name, in our order, each made from our parameters when it is written."""
  parts: dict[str, list] = {}
  shapes: dict[str, tuple[int, ...]] = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    name = jax.tree_util.keystr(path, simple=True, separator=".")
    place = names.find(name, leaf.shape, layout)
    if place is None:
      raise UsageError(f"files of this architecture have no place for parameter {name}")
    turn = config.rope_interleaved and bool(_ROTATED.search(name))
    for layer in range(leaf.shape[0] if place.stacked else 1):
      theirs = place.of_layer(layer)
      shapes[theirs] = place.shape
      parts.setdefault(theirs, []).append((place, leaf, layer, turn))
  dtype = np.dtype(jax.numpy.dtype(config.param_dtype))
  tensors = {
    name: ToWrite(dtype, shapes[name], functools.partial(_make, sources))
    for name, sources in parts.items()
  }
  column = names.COLUMNS[layout]
  for name, copy in column.copies.items():
    tensors[copy] = tensors[name]
  if column.folded is not None:
    zeros = np.zeros((names.TYPES, config.d_model), dtype)
    tensors[column.folded[1]] = ToWrite(dtype, zeros.shape, lambda: zeros)
  inv_freq = column.inv_freq
  if inv_freq:
    freq = rope.frequencies_of(config).astype(np.float32)
    for layer in range(config.num_layers):
      name = inv_freq.format(layer)
      tensors[name] = ToWrite(freq.dtype, freq.shape, lambda: freq)
  return tensors


def _make(sources: list) -> np.ndarray:
  """One of their tensors, of all the parts it fuses."""
  made = []
  for place, leaf, layer, turn in sorted(sources, key=lambda s: s[0].part or 0):
    ours = np.asarray(leaf[layer] if place.stacked else leaf)
    made.append(place.to_theirs(rope.to_half_pairs(ours) if turn else ours))
  return made[0] if len(made) == 1 else np.concatenate(made, axis=-1)


def _write_shards(folder: pathlib.Path, tensors: Mapping[str, ToWrite], limit: int) -> None:
  """One file where everything fits, else shards and their index."""
  shards: list[dict[str, ToWrite]] = [{}]
  filled = 0
  for name, x in tensors.items():
    if shards[-1] and filled + x.nbytes > limit:
      shards.append({})
      filled = 0
    shards[-1][name] = x
    filled += x.nbytes
  if len(shards) == 1:
    tensor_files.write(folder / tensor_files.SINGLE, shards[0])
    return
  where: dict[str, str] = {}
  for i, shard in enumerate(shards, start=1):
    file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
    tensor_files.write(folder / file, shard)
    where |= dict.fromkeys(shard, file)
  total = sum(x.nbytes for x in tensors.values())
  _write_json(folder / tensor_files.INDEX, {"metadata": {"total_size": total}, "weight_map": where})
