"""An adapter in a file of its own: safetensors, with the base it belongs to in the header.

Tensor names are the paths of the adapter's parameters joined by "." ("layers.attn.q_adapter_a",
"mask_embedding"). The metadata holds one JSON object under "sbdjax_adapter": the fields of the
AdapterConfig, `mask_id` and `base_sha256`, which is taken over the parameters of the
base, ascending by path joined by "/", for each its path, its shape as Python prints a tuple of
numbers, and its values rounded to bfloat16, little-endian, in C order. Of tables with one row a
token ("embedding", "head", "head_bias") the mask token's row and the rows that stand for no token
are left out. So a base is the same one in any precision, with its vocabulary padded or not, and
whether its mask token was there or was given to it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from sbdjax import foreign
from sbdjax.errors import CheckpointError, UsageError
from sbdjax.interop import native
from sbdjax.interop.mask_token import TABLES, add_mask_token
from sbdjax.interop.soundness import check_finite
from sbdjax.lm import LM
from sbdjax.nn import adapter
from sbdjax.nn.adapter import AdapterConfig
from sbdjax.nn.config import TransformerConfig, need_mask_token
from sbdjax.settings import to_dataclass

# Bytes of a parameter that are hashed at a time.
_PIECE = 2**26


class _Header(TypedDict):
  """The JSON object of the file's metadata."""

  adapter: dict[str, Any]
  mask_id: int
  base_sha256: str


class AdapterFile(NamedTuple):
  """What a file holds.

  Attributes:
    config: of the adapter.
    params: its parameters, float32 (numpy).
    mask_id: the mask token that it was trained with.
    base_sha256: of the base, see `base_hash`.
  """

  config: AdapterConfig
  params: dict[str, Any]
  mask_id: int
  base_sha256: str


def base_hash(config: TransformerConfig, params: Mapping[str, Any]) -> str:
  """The SHA-256 of a model without its adapter, in hexadecimal; see the module's docstring.

  Args:
    config: of the model; says which rows of its tables do not count.
    params: its parameters, of any dtype, on any devices.
  """
  digest = hashlib.sha256()
  used = np.arange(config.vocab_size - config.unused_rows)
  used = used[used != config.mask_id] if config.mask_id is not None else used
  flat = traverse_util.flatten_dict(adapter.split(params)[0], sep="/")
  for name in sorted(flat):
    values = _on_host(flat[name])
    if name in TABLES:
      values = values[used]
    digest.update(f"{name}{tuple(values.shape)}".encode())
    for piece in np.array_split(values, max(1, min(len(values), values.nbytes // _PIECE))):
      half = np.ascontiguousarray(piece, jnp.bfloat16)
      digest.update(half.view(np.uint16).astype("<u2").tobytes())
  return digest.hexdigest()


def _on_host(x: Any) -> np.ndarray:
  if isinstance(x, jax.Array) and not x.is_fully_addressable:
    from jax.experimental import multihost_utils  # here: only several processes need it

    return np.asarray(multihost_utils.process_allgather(x, tiled=True))
  return np.asarray(x)


def write(
  path: str | os.PathLike,
  config: TransformerConfig,
  params: Mapping[str, Any],
  *,
  dtype: str = adapter.DTYPE,
) -> None:
  """Writes the adapter of a model, whole or not at all.

  Args:
    config: of the model.
    params: of the model, base and adapter.
    dtype: of the tensors: "float32", "bfloat16" or "float16".

  Raises:
    UsageError: the model has no adapter.
    CheckpointError: the file cannot be written.
  """
  if config.adapter is None:
    raise UsageError("this model has no adapter to write: train one with model.adapter.rank=16")
  ours = jax.tree.map(lambda x: np.asarray(x).astype(jnp.dtype(dtype)), adapter.split(params)[1])
  header = {
    "adapter": dataclasses.asdict(config.adapter),
    "mask_id": need_mask_token(config, "which an adapter needs"),
    "base_sha256": base_hash(config, params),
  }
  native.write_tensors(path, ours, {native.ADAPTER: json.dumps(header, sort_keys=True)})


def read(path: str | os.PathLike) -> AdapterFile:
  """Reads what `write` wrote.

  Raises:
    CheckpointError: unreadable, truncated, or no file of an adapter.
  """
  flat, metadata = native.read_tensors(path)
  if native.ADAPTER not in metadata:
    raise CheckpointError(
      f"{path} is no adapter: name a file that `convert` wrote of a model with one"
    )
  unknown = lambda problem: CheckpointError(
    f"{path} describes an adapter this version does not know: {problem}"
  )
  header = foreign.parse_json(metadata[native.ADAPTER], "its header", _Header, unknown)
  try:
    config = to_dataclass(AdapterConfig, header["adapter"], "adapter")
  except UsageError as e:
    raise unknown(str(e)) from e
  params = {name: x.astype(adapter.DTYPE) for name, x in flat.items()}
  check_finite(params, str(path))
  tree = traverse_util.unflatten_dict(params, sep=".")
  return AdapterFile(config, tree, header["mask_id"], header["base_sha256"])


def attach(
  config: TransformerConfig, params: dict[str, Any], found: AdapterFile, where: str
) -> tuple[TransformerConfig, dict[str, Any]]:
  """A base with an adapter; a base without a mask token gets the adapter's.

  Args:
    config, params: of the base.
    found: the adapter.
    where: its name, for messages.

  Raises:
    UsageError: the base has an adapter already.
    CheckpointError: it is not the base that the adapter was trained on.
  """
  if config.adapter is not None:
    raise UsageError(f"the checkpoint has an adapter already: open it without {where}")
  if config.mask_id is None:
    used = config.vocab_size - config.unused_rows
    reserved = found.mask_id if found.mask_id < used else None
    config, params = add_mask_token(config, params, token_id=reserved)
  if config.mask_id != found.mask_id:
    raise CheckpointError(
      f"{where} was trained with mask token {found.mask_id}, the base has {config.mask_id}: open "
      "the model it was trained on"
    )
  own = base_hash(config, params)
  if own != found.base_sha256:
    if any(x.dtype == jnp.float16 for x in jax.tree.leaves(params)):
      raise CheckpointError(
        f"{where} cannot tell its base in float16, which rounds the weights otherwise: open it in float32, bfloat16 or mixed"
      )
    raise CheckpointError(
      f"{where} belongs to other weights (sha256 {found.base_sha256[:12]}, these have {own[:12]}): "
      "open the model it was trained on"
    )
  config = dataclasses.replace(config, adapter=found.config)
  return config, adapter.join(params, jax.tree.map(jnp.asarray, found.params))


def fresh(lm: LM, base: Mapping[str, Any], key: jax.Array) -> dict[str, Any]:
  """The parameters of a base with a new adapter, which changes nothing before it is trained.

  Args:
    lm: the model, of which `base` has all parameters but the adapter's.
    key: of the random half of the adapter's matrices.
  """
  new = jax.jit(lambda key: adapter.split(lm.init(key))[1])(key)
  mask_id = need_mask_token(lm.config, "which an adapter needs")
  new[adapter.MASK_EMBEDDING] = jnp.asarray(base["embedding"])[mask_id].astype(adapter.DTYPE)
  return adapter.join(base, new)
