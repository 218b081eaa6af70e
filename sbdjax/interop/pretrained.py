"""`load_pretrained`: one call that opens any checkpoint the package can read."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sbdjax.data import assets, tokenizers
from sbdjax.errors import CheckpointError, SbdjaxError
from sbdjax.interop import llama2c, native
from sbdjax.lm import LM, make_lm

# Checkpoints inside the package, by the name users give.
EMBEDDED = {
  "stories260K": "stories260K.bin",
  "stories260K-sbd": "stories260K_sbd.safetensors",
}


@dataclasses.dataclass(frozen=True)
class GenerationDefaults:
  """What decoding needs to know of a checkpoint beyond its network.

  Attributes:
    eos_ids: tokens that end a text.
    mask_id: the mask token, or None for a plain next-token model.
  """

  eos_ids: tuple[int, ...]
  mask_id: int | None


class Pretrained(NamedTuple):
  """An opened checkpoint: the model, its parameters, its tokenizer and decoding defaults."""

  lm: LM
  params: Any
  tokenizer: tokenizers.Tokenizer
  generation: GenerationDefaults


def load_pretrained(path: str | os.PathLike, *, dtype: str | None = None) -> Pretrained:
  """Opens a checkpoint.

  Args:
    path: the name of an embedded one (`EMBEDDED`), a llama2.c `.bin`, a `.safetensors` file of
      this package, or a training workdir (its newest checkpoint; EMA weights where it kept them).
    dtype: parameter and compute dtype to use instead of the checkpoint's.

  Raises:
    CheckpointError: nothing there, or nothing this package can read.
  """
  name = str(path)
  file = assets.path(EMBEDDED[name]) if name in EMBEDDED else pathlib.Path(name).expanduser()
  if file.is_dir():
    config, params, tokenizer_name, eos_ids = _read_workdir(file)
  elif not file.exists():
    raise CheckpointError(
      f"no checkpoint at {path}: give a file, a workdir, or one of {', '.join(sorted(EMBEDDED))}"
    )
  elif file.suffix == ".safetensors":
    config, params, settings = native.read(file)
    try:
      tokenizer_name, eos_ids = settings["tokenizer"], settings["eos_ids"]
    except KeyError as e:
      raise CheckpointError(f"{path} does not name its {e.args[0]}: write it again") from e
  else:
    config, params = llama2c.read(file)
    beside = file.with_name(f"tok{config.vocab_size}.bin")
    tokenizer_name = str(beside) if beside.is_file() else f"tok{config.vocab_size}"
    eos_ids = (1, 2)  # llama2.c ends a text at its bos token; 2 is eos in the vocabulary
  if dtype is not None:
    config = dataclasses.replace(config, param_dtype=dtype, compute_dtype=dtype)
  params = jax.tree.map(lambda x: jnp.asarray(x, config.param_dtype), params)
  lm = make_lm(config)
  check_params(lm, params, str(path))
  tokenizer = tokenizers.load_tokenizer(tokenizer_name, mask_id=config.mask_id)
  check_vocabulary(lm, tokenizer, str(path), tokenizer_name)
  return Pretrained(lm, params, tokenizer, GenerationDefaults(tuple(eos_ids), config.mask_id))


def check_params(lm: LM, params, where: str):
  """Compares names and shapes with what the configuration asks for.

  Raises:
    CheckpointError: naming the first tensor that is missing, unknown or of another shape.
  """
  expected = {
    jax.tree_util.keystr(p, simple=True, separator="."): x.shape
    for p, x in jax.tree_util.tree_leaves_with_path(jax.eval_shape(lm.init, jax.random.key(0)))
  }
  found = {
    jax.tree_util.keystr(p, simple=True, separator="."): x.shape
    for p, x in jax.tree_util.tree_leaves_with_path(params)
  }
  for name in sorted(expected.keys() | found.keys()):
    if expected.get(name) != found.get(name):
      raise CheckpointError(
        f"{where}: tensor {name} has shape {found.get(name, '(missing)')}, the model's "
        f"configuration expects {expected.get(name, 'no such tensor')}"
      )


def check_vocabulary(lm: LM, tokenizer, where: str, tokenizer_name: str):
  """A tokenizer must not produce ids the embedding lacks.

  Raises:
    CheckpointError: naming both sizes.
  """
  if tokenizer.vocab_size > lm.config.vocab_size:
    raise CheckpointError(
      f"{where} has {lm.config.vocab_size} embedding rows but tokenizer {tokenizer_name} has "
      f"{tokenizer.vocab_size} tokens: name the tokenizer the checkpoint was trained with"
    )


def _read_workdir(folder: pathlib.Path):
  """Configuration, newest parameters, tokenizer name and eos ids of a training workdir."""
  from sbdjax.train import checkpoints  # here: importing orbax takes a second

  file = folder / "config.json"
  try:
    settings = json.loads(file.read_text())
  except (OSError, json.JSONDecodeError) as e:
    raise CheckpointError(f"{folder} is no training workdir: cannot read {file.name} ({e})") from e
  try:
    resolved = settings["resolved"]
    config = native.TransformerConfig(**resolved["model"])
    tokenizer, eos_ids = resolved["tokenizer"], resolved["eos_ids"]
  except (KeyError, TypeError, SbdjaxError) as e:
    raise CheckpointError(f"{file} does not describe a model this version knows: {e}") from e
  return config, checkpoints.load_params(folder), tokenizer, eos_ids
