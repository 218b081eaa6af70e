"""sbdjax's own single-file format: safetensors with the settings in the header's metadata.

Tensor names are the parameter tree's paths joined by "." ("layers.attn.q_kernel"). The metadata
holds one JSON object under "sbdjax": the model's TransformerConfig, the tokenizer's name, the eos
ids, `made_by`, the command that made the weights, and for a self-speculative model `head`, the
fields of its HeadConfig.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import safetensors
from flax import traverse_util
from safetensors.numpy import save

from sbdjax import foreign
from sbdjax.errors import CheckpointError, UsageError
from sbdjax.failures import one_line
from sbdjax.nn.config import TransformerConfig, from_record

_KEY = "sbdjax"
# The header of a file that holds an adapter alone (`interop.adapter_file`).
ADAPTER = "sbdjax_adapter"


def write(
  path: str | os.PathLike, config: TransformerConfig, params: Mapping, settings: Mapping[str, Any]
) -> None:
  """Writes parameters and settings to one .safetensors file, whole or not at all.

  Args:
    settings: JSON values kept beside the model configuration: tokenizer, eos_ids, made_by, head.

  Raises:
    CheckpointError: the file cannot be written.
  """
  record = {"model": dataclasses.asdict(config), **settings}
  write_tensors(path, params, {_KEY: json.dumps(record, sort_keys=True)})


def write_tensors(path: str | os.PathLike, params: Mapping, header: dict[str, str]) -> None:
  """Writes a tree of arrays to a .safetensors file with this metadata, whole or not at all.

  Raises:
    CheckpointError: the file cannot be written.
  """
  path = pathlib.Path(path).expanduser()
  flat = traverse_util.flatten_dict(dict(params), sep=".")
  tensors = {name: np.ascontiguousarray(value) for name, value in flat.items()}
  temporary = path.with_name(path.name + ".tmp")
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_bytes(save(tensors, header))
    temporary.replace(path)
  except OSError as e:
    temporary.unlink(missing_ok=True)
    raise CheckpointError(f"cannot write {path}: {e.strerror or e}") from e


def read(path: str | os.PathLike) -> tuple[TransformerConfig, dict, dict[str, Any]]:
  """Reads what `write` wrote: configuration, parameters (numpy) and the other settings.

  Raises:
    CheckpointError: unreadable, truncated, without this package's header, or with tensors that
      are not those of its configuration.
  """
  flat, metadata = read_tensors(path, _check_header)
  settings = foreign.parse_json(metadata[_KEY], f"the header of {path}", dict[str, Any])
  try:
    config = from_record(settings.pop("model", None))
  except (TypeError, UsageError) as e:
    raise CheckpointError(f"{path} describes a model this version does not know: {e}") from e
  return config, traverse_util.unflatten_dict(flat, sep="."), settings


def _check_header(path: str | os.PathLike, metadata: Mapping[str, str]) -> None:
  """Raises CheckpointError unless the file holds a model."""
  if ADAPTER in metadata:
    raise CheckpointError(
      f"{path} is an adapter, no model: name the model it was trained on, and it as the adapter "
      "(--adapter=FILE)"
    )
  if _KEY not in metadata:
    raise CheckpointError(
      f"{path} is a safetensors file without sbdjax settings in its header: it was not "
      "written by this package (of a Hugging Face checkpoint, give the directory that holds "
      "its config.json)"
    )


def read_tensors(
  path: str | os.PathLike,
  check: Callable[[str | os.PathLike, Mapping[str, str]], None] = lambda path, metadata: None,
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
  """The tensors of a .safetensors file by name, and its metadata.

  Args:
    check: (path, metadata), called before the tensors are read.

  Raises:
    CheckpointError: it is unreadable or truncated.
  """
  try:
    with safetensors.safe_open(str(foreign.regular(path)), framework="numpy") as file:
      metadata = file.metadata() or {}
      check(path, metadata)
      return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
  except (OSError, safetensors.SafetensorError) as e:
    raise CheckpointError(f"cannot read {path}: {one_line(e)}") from e
