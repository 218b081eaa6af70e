"""Streams the tensors of a checkpoint's files into parameters on devices."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding

from sbdjax import memory
from sbdjax.errors import CheckpointError
from sbdjax.interop.hf import names, tensor_files
from sbdjax.interop.hf.names import Place
from sbdjax.interop.hf.tensor_files import Readable

# Tables (embedding, head) are read this many bytes of rows at a time.
_CHUNK = 1 << 26


class Folded(NamedTuple):
  """A `Readable`: `table` with the first row of `other` added to each of its rows.

  Attributes:
    table: [R, D].
    other: [T, D], T at least 1.
  """

  table: Readable
  other: Readable

  @property
  def dtype(self) -> str:
    return self.table.dtype

  @property
  def shape(self) -> tuple[int, ...]:
    return self.table.shape

  @property
  def itemsize(self) -> int:
    return self.table.itemsize

  def read(self, rows: range | None = None) -> np.ndarray:
    """See `Readable`; sums in float32, as float32."""
    found, row = self.table.read(rows), self.other.read(range(1))
    # As it is, bit for bit: -0 + 0 is another zero.
    return found if not row.any() else found.astype(np.float32) + row.astype(np.float32)


class Tensors:
  """The tensors of a checkpoint under the names of the table, prefix or not."""

  def __init__(self, stored: Mapping[str, Readable], layout: str, where: str):
    self.layout, self.where = layout, where
    self._column = names.COLUMNS[layout]
    self._stored = {self._bare(name): (name, x) for name, x in stored.items()}
    for name, copy in self._column.copies.items():
      if self._bare(copy) in self._stored:
        self._stored[self._bare(name)] = self._stored.pop(self._bare(copy))

  def _bare(self, name: str) -> str:
    return names.modern(name).removeprefix(self._column.prefix)

  @property
  def _head(self) -> str:
    return f"{names.TABLE['head'][self.layout]}.weight"

  def find(self, name: str) -> Readable | None:
    """The tensor called `name`, or None."""
    return self._stored.get(self._bare(name), (name, None))[1]

  def get(self, name: str, shape: tuple[int, ...]) -> Readable:
    """The tensor called `name`.

    Raises:
      CheckpointError: it is not there, has another shape, or no dtype of plain floats.
    """
    stored, settings = self.find(name), self._column.settings
    if stored is None:
      raise CheckpointError(
        f"{self.where} lacks tensor {name}, which its {settings} asks for with shape {list(shape)}"
      )
    if stored.shape != tuple(shape):
      raise CheckpointError(
        f"{self.where}: tensor {name} has shape {list(stored.shape)}, its {settings} asks for "
        f"{list(shape)}"
      )
    if not stored.itemsize:
      raise CheckpointError(
        f"{self.where}: tensor {name} has dtype {stored.dtype}; supported are "
        f"{', '.join(tensor_files.DTYPES)}: get a version that is not quantized"
      )
    if self._column.folded is not None and name == self._column.folded[0]:
      return self._fold(stored, self._column.folded[1])
    return stored

  def _fold(self, table: Readable, other: str) -> Folded:
    """`table` with the first row of the table called `other`; see `names.Column.folded`."""
    found = self.find(other)
    types = max(1, found.shape[0]) if found is not None and found.shape else 1
    return Folded(table, self.get(other, (types, *table.shape[1:])))

  def rope_frequencies(self, usual: np.ndarray) -> tuple[float, ...] | None:
    """The rotary frequencies in the files, if this layout's network takes them from there and they
    are not the `usual` ones of its theta.

    Raises:
      CheckpointError: layers have different ones.
    """
    if self._column.inv_freq is None:
      return None
    ending = self._column.inv_freq.rsplit("{}", 1)[1].rsplit(".", 2)[1] + ".inv_freq"
    found = [x.read() for name, x in self._stored.values() if name.endswith(ending)]
    if not found:
      return None
    first = found[0].astype(np.float64)
    if any(not np.array_equal(first, x.astype(np.float64)) for x in found):
      raise CheckpointError(f"{self.where}: its layers have different rotary frequencies")
    # In float32 the usual ones differ by rounding alone.
    same = first.shape == usual.shape and np.allclose(first, usual, rtol=1e-6, atol=0)
    return None if same else tuple(first.tolist())

  def check_all_used(self, used: set[str], tied: bool) -> None:
    """Raises CheckpointError for a tensor that is not `used`, ignored, or the head of a tied model."""
    bare = {self._bare(name) for name in (*used, *(self._column.folded or ()))}
    if tied:
      bare |= {self._bare(self._head)}
    surplus = sorted(
      (name, str(stored))
      for key, (name, stored) in self._stored.items()
      if key not in bare and not self._column.ignored.search(name)
    )
    if surplus:
      name, what = surplus[0]
      raise CheckpointError(
        f"{self.where} holds tensor {name} ({what}), which its {self._column.settings} has "
        f"no place for" + (f", and {len(surplus) - 1} more" if len(surplus) > 1 else "")
      )

  def check_tied_head(self, embedding: str) -> None:
    """A tied model's files may hold its head all the same; it must be the embedding.

    Raises:
      CheckpointError: it is another matrix, which would be lost.
    """
    head, table = self.find(self._head), self.find(embedding)
    if head is None or table is None:
      return
    same = head.dtype == table.dtype and head.shape == table.shape
    if not same or any(
      head.read(rows).tobytes() != table.read(rows).tobytes() for rows in _rows(head)
    ):
      raise CheckpointError(
        f"{self.where}: config.json ties the output head to the embedding, but {self._head} is "
        "another matrix: set its tie_word_embeddings (weight_tying) to false"
      )


def _rows(stored: Readable) -> Iterator[range]:
  """The rows of a table in runs of `_CHUNK` bytes."""
  rows = stored.shape[0]
  row_bytes = math.prod(stored.shape[1:]) * stored.itemsize
  step = max(1, _CHUNK // row_bytes)
  return (range(first, min(first + step, rows)) for first in range(0, rows, step))


def _stacked(place: Place, stored: Readable) -> np.ndarray:
  """One layer's tensor as a row of our leaf."""
  return place.to_ours(stored.read())[None]


class Leaf:
  """One of our parameters, readable piece by piece.

  Attributes:
    shape: of the whole leaf, [N, ...] if it is stacked.
    names: their tensors it is made of.
  """

  def __init__(self, leaf: str, shape: tuple[int, ...], tensors: Tensors):
    place = names.find(leaf, shape, tensors.layout)
    if place is None:
      raise CheckpointError(f"{tensors.where}: files of this layout have no place for {leaf}")
    self.shape, self._place = shape, place
    self.names = [place.of_layer(n) for n in range(shape[0] if place.stacked else 1)]
    self._sources = [tensors.get(name, place.shape) for name in self.names]

  def read(self, indices: Sequence[tuple[slice, ...]], dtype: np.dtype) -> list[np.ndarray]:
    """The pieces of the leaf that devices hold, in `dtype`; each tensor is read once, if needed."""
    spans = [[range(*s.indices(n)) for s, n in zip(i, self.shape, strict=True)] for i in indices]
    blocks = [np.empty([len(span) for span in piece], dtype) for piece in spans]
    for rows, load in self._tensors():
      wanted = []
      for index, span, block in zip(indices, spans, blocks, strict=True):
        first, stop = max(rows.start, span[0].start), min(rows.stop, span[0].stop)
        if first < stop:
          to = slice(first - span[0].start, stop - span[0].start)
          wanted.append((block[to], (slice(first - rows.start, stop - rows.start), *index[1:])))
      if wanted:
        tensor = load()
        for target, index in wanted:
          np.copyto(target, tensor[index], casting="unsafe")
    return blocks

  def _tensors(self) -> Iterator[tuple[range, Callable[[], np.ndarray]]]:
    """Rows of the leading axis, and what reads them in our orientation."""
    place: Place = self._place
    if place.stacked:
      for n, stored in enumerate(self._sources):
        yield range(n, n + 1), functools.partial(_stacked, place, stored)
    elif place.num_inputs:
      yield range(self.shape[0]), lambda: place.to_ours(self._sources[0].read())
    else:
      for rows in _rows(self._sources[0]):
        yield rows, functools.partial(self._sources[0].read, rows)


def load_params(tensors: Tensors, abstract: Any, shardings: Any, tied: bool) -> Any:
  """Reads every parameter of `abstract` onto the devices of its sharding.

  Args:
    tensors: what the files hold.
    abstract: tree of shapes and dtypes, as `eval_shape(lm.init)` gives it.
    shardings: tree of the same structure.
    tied: the output head is the embedding; a copy of it in the files is ignored.

  Raises:
    CheckpointError: a tensor is missing, has another shape or dtype, or is one too many; nothing
      is read before all names and shapes are found right.
  """
  paths = jax.tree_util.tree_leaves_with_path(abstract)
  leaves = {jax.tree_util.keystr(path, simple=True, separator="."): x for path, x in paths}
  readers = {name: Leaf(name, x.shape, tensors) for name, x in leaves.items()}
  tensors.check_all_used({name for leaf in readers.values() for name in leaf.names}, tied)
  if tied:
    tensors.check_tied_head(*readers["embedding"].names)
  memory.check(
    memory.of_shards(abstract, shardings),
    memory.device(),
    f"the model of {tensors.where}",
    "open it with dtype bfloat16, or on more devices",
  )
  where = dict(zip(leaves, jax.tree.leaves(shardings), strict=True))
  # Largest first: while a leaf moves to its device it exists twice, and the largest should do so
  # when little else is loaded.
  order = sorted(leaves, key=lambda name: -math.prod(leaves[name].shape))
  arrays = {name: _put(readers[name], leaves[name].dtype, where[name]) for name in order}
  return jax.tree.unflatten(jax.tree.structure(abstract), [arrays[name] for name in leaves])


def _put(leaf: Leaf, dtype: Any, sharding: Sharding) -> jax.Array:
  """One leaf as a global array; a piece that several devices hold is made once."""
  holders: dict[tuple, list] = {}
  indices: Mapping[Any, Any] = sharding.addressable_devices_indices_map(leaf.shape)
  for device, index in indices.items():
    key = tuple(s.indices(n) for s, n in zip(index, leaf.shape, strict=True))
    holders.setdefault(key, []).append(device)
  blocks = leaf.read([tuple(slice(*k) for k in key) for key in holders], np.dtype(dtype))
  pieces = [
    jax.device_put(block, device)
    for block, devices in zip(blocks, holders.values(), strict=True)
    for device in devices
  ]
  jax.block_until_ready(pieces)  # so that the blocks can be freed
  return jax.make_array_from_single_device_arrays(leaf.shape, sharding, pieces)
