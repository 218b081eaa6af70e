"""Streams the tensors of a Hugging Face directory into parameters on devices."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from sbdjax.errors import CheckpointError
from sbdjax.interop.hf import files, names
from sbdjax.interop.hf.files import Stored
from sbdjax.nn.transformer import TransformerConfig

# Tables (embedding, head) are read this many bytes of rows at a time.
_CHUNK = 1 << 26


class Tensors:
  """The tensors of a directory under the names of the table, prefix or not.

  Attributes:
    where: what to call the checkpoint in messages.
    used: names asked for so far.
  """

  def __init__(self, stored: Mapping[str, Stored], layout: str, where: str):
    self.column = names.COLUMNS[layout]
    self.where = where
    self.used: set[str] = set()
    self._stored = {self._bare(name): (name, x) for name, x in stored.items()}

  def _bare(self, name: str) -> str:
    return name.removeprefix(self.column.prefix)

  def get(self, name: str, shape: tuple[int, ...]) -> Stored:
    """The tensor called `name`.

    Raises:
      CheckpointError: it is not there, or has another shape.
    """
    self.used.add(self._bare(name))
    _, stored = self._stored.get(self._bare(name), (None, None))
    if stored is None:
      raise CheckpointError(
        f"{self.where} lacks tensor {name}, which its config.json asks for with shape {list(shape)}"
      )
    if stored.shape != tuple(shape):
      raise CheckpointError(
        f"{self.where}: tensor {name} has shape {list(stored.shape)}, its config.json asks for "
        f"{list(shape)}"
      )
    return stored

  def surplus(self) -> list[str]:
    """Tensors nobody asked for, those that the layout ignores left out."""
    return sorted(
      name
      for bare, (name, _) in self._stored.items()
      if bare not in self.used and not self.column.ignored.search(name)
    )

  def __getitem__(self, name: str) -> Stored:
    return self._stored[self._bare(name)][1]


class Leaf:
  """One of our parameters, readable piece by piece.

  Attributes:
    shape: of the whole leaf, [N, ...] if it is stacked.
  """

  def __init__(self, leaf: str, shape: tuple[int, ...], layout: str, tensors: Tensors):
    theirs = names.find(leaf, layout)
    if theirs is None:
      raise CheckpointError(f"{tensors.where}: this layout of tensors has no place for {leaf}")
    self.shape, self._theirs, self._stacked = shape, theirs, leaf.startswith("layers.")
    self._inner = shape[1:] if self._stacked else shape
    # Of a matrix, the inputs are the leading axes (o: heads and channels) or one.
    self._inputs = math.prod(self._inner[:-1]) if leaf.endswith("o_kernel") else self._inner[0]
    self._matrix = leaf.endswith("_kernel")
    layers = range(shape[0]) if self._stacked else (0,)
    self._sources = [tensors.get(theirs.of_layer(n), self._their_shape()) for n in layers]

  def _their_shape(self) -> tuple[int, ...]:
    size = math.prod(self._inner)
    parts = 1 if self._theirs.part is None else 3
    if self._matrix:
      matrix = (self._inputs, size // self._inputs * parts)
      return matrix[::-1] if self._theirs.transposed else matrix
    return self._inner if len(self._inner) == 2 and not self._stacked else (size * parts,)

  def _ours(self, x: np.ndarray) -> np.ndarray:
    """One of their tensors in our orientation and shape, as a view of it."""
    if self._theirs.transposed:
      x = x.T
    if self._theirs.part is not None:
      x = np.split(x, 3, axis=-1)[self._theirs.part]
    return x.reshape(self._inner)  # only splits axes, which copies nothing

  def read(self, index: tuple[slice, ...], dtype: np.dtype) -> np.ndarray:
    """The piece of the leaf that a device holds, in `dtype`, made a tensor at a time."""
    ranges = [range(*s.indices(n)) for s, n in zip(index, self.shape, strict=True)]
    out = np.empty([len(r) for r in ranges], dtype)
    if self._stacked:
      for i, layer in enumerate(ranges[0]):
        np.copyto(
          out[i, ...], self._ours(files.read(self._sources[layer]))[index[1:]], casting="unsafe"
        )
      return out
    if self._matrix or len(self.shape) == 1:
      np.copyto(out, self._ours(files.read(self._sources[0]))[index], casting="unsafe")
      return out
    rows, row_bytes = ranges[0], self.shape[1] * files.DTYPES[self._sources[0].dtype].itemsize
    step = max(1, _CHUNK // row_bytes)
    for first in range(0, len(rows), step):
      part = slice(rows.start + first, rows.start + min(first + step, len(rows)))
      block = files.read(self._sources[0], part)[:, index[1]]
      np.copyto(out[first : first + step], block, casting="unsafe")
    return out


def load_params(
  tensors: Tensors,
  layout: str,
  config: TransformerConfig,
  abstract: Any,
  shardings: Any,
) -> Any:
  """Reads every parameter of `abstract` onto the devices of its sharding.

  Args:
    tensors: what the directory holds.
    layout: column of the table of names.
    config: the network's configuration.
    abstract: tree of shapes, as `eval_shape(lm.init)` gives it.
    shardings: tree of the same structure.

  Raises:
    CheckpointError: a tensor is missing, has another shape or dtype, or is one too many; nothing
      is read before all names and shapes are found right.
  """
  named = jax.tree_util.tree_leaves_with_path(abstract)
  leaves = {jax.tree_util.keystr(path, simple=True, separator="."): x for path, x in named}
  readers = {name: Leaf(name, x.shape, layout, tensors) for name, x in leaves.items()}
  surplus = tensors.surplus()
  if config.tie_embeddings:
    head = names.find("head", layout)
    surplus = [name for name in surplus if head is None or name != head.name]
  if surplus:
    raise CheckpointError(
      f"{tensors.where} holds tensor {surplus[0]} of {tensors[surplus[0]]}, which its config.json "
      f"has no place for ({len(surplus)} such tensors)"
    )
  where = dict(zip(leaves, jax.tree.leaves(shardings), strict=True))
  # Largest first: while a leaf is moved to its device it exists twice, and the largest should do
  # so when little else is loaded.
  order = sorted(leaves, key=lambda name: -math.prod(leaves[name].shape))
  arrays = {name: place(readers[name], leaves[name].dtype, where[name]) for name in order}
  return jax.tree.unflatten(jax.tree.structure(abstract), [arrays[name] for name in leaves])


def place(leaf: Leaf, dtype: Any, sharding: Sharding) -> jax.Array:
  """One leaf as a global array; a piece that several devices hold is read once."""
  holders: dict[tuple, list] = {}
  indices = sharding.addressable_devices_indices_map(leaf.shape)
  for device, index in indices.items():
    index = index or (slice(None),) * len(leaf.shape)
    key = tuple(s.indices(n) for s, n in zip(index, leaf.shape, strict=True))
    holders.setdefault(key, []).append(device)
  pieces = []
  for key, devices in holders.items():
    block = leaf.read(tuple(slice(*k) for k in key), np.dtype(dtype))
    pieces += [jax.device_put(block, device) for device in devices]
    jax.block_until_ready(pieces)  # the block may be freed
  return jax.make_array_from_single_device_arrays(leaf.shape, sharding, pieces)


def read_folder(folder: pathlib.Path, layout: str) -> Tensors:
  """What the safetensors of `folder` hold."""
  return Tensors(files.read_folder(folder), layout, str(folder))
