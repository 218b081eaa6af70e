"""The head of a GGUF file, llama.cpp's format: its metadata, and where its tensors lie.

The format is described in docs/gguf.md of ggml-org/ggml. The package `gguf` reads it; no tensor is
read here.
"""

from __future__ import annotations

import functools
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np

from sbdjax.errors import CheckpointError
from sbdjax.foreign import regular

SUFFIX = ".gguf"
_MAGIC = b"GGUF"
# What the package's reader raises where the bytes make no sense.
_DAMAGE = (ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError, MemoryError)


class Located(NamedTuple):
  """Where one tensor lies.

  Attributes:
    dtype: name of its ggml type ("Q4_1", "F32").
    shape: its dimensions in numpy's order (ggml's reversed): outputs before inputs.
    start: offset of its first byte in the file.
  """

  dtype: str
  shape: tuple[int, ...]
  start: int


class Header(NamedTuple):
  """What a GGUF file says before its numbers.

  Attributes:
    file: its path.
    metadata: key -> number, text, or a list of either.
    tensors: name -> where it lies, in the file's order.
  """

  file: pathlib.Path
  metadata: dict[str, Any]
  tensors: dict[str, Located]


def is_gguf(path: pathlib.Path) -> bool:
  """Whether a file is named or begins like a GGUF file."""
  if path.suffix == SUFFIX:
    return True
  try:
    with path.open("rb") as file:
      return file.read(len(_MAGIC)) == _MAGIC
  except OSError:
    return False


def read(path: str | os.PathLike) -> Header:
  """Reads the head of one file.

  Raises:
    CheckpointError: unreadable, no GGUF file, damaged or truncated (also in its tensors), one part
      of several, or of the other byte order.
  """
  path = regular(path)
  try:
    with path.open("rb") as file:
      if file.read(len(_MAGIC)) != _MAGIC:
        raise CheckpointError(f"{path} is no GGUF file, or a damaged one: it does not begin so")
    reader = _reader()(path)
    metadata = {key: x.contents() for key, x in reader.fields.items() if key[:5] != "GGUF."}
  except OSError as e:
    raise CheckpointError(f"cannot read {path}: {e.strerror or e}") from e
  except _DAMAGE as e:
    raise CheckpointError(
      f"{path} is a damaged or truncated GGUF file ({e}): download it again"
    ) from e
  if reader.byte_order == "S":
    raise CheckpointError(f"{path} has the byte order of another machine: get a little-endian one")
  parts = metadata.get("split.count", 1)
  if parts > 1:
    raise CheckpointError(
      f"{path} is one of {parts} parts: join them with llama.cpp's `llama-gguf-split --merge`"
    )
  tensors = {
    x.name: Located(x.tensor_type.name, tuple(map(int, x.shape[::-1])), x.data_offset)
    for x in reader.tensors
  }
  return Header(path, metadata, tensors)


@functools.cache
def _reader() -> Any:
  """The package's reader; a vocabulary of 50,000 tokens takes it a second instead of five."""
  import gguf  # here: only GGUF files need it

  class Reader(gguf.GGUFReader):
    """Cuts plain arrays out of the mapped file, and none beyond its end."""

    def _get(self, offset, dtype, count=1, override_order=None):
      if not hasattr(self, "_plain"):
        self._plain = np.asarray(self.data)  # a slice of a memmap costs ten times as much
      dtype = np.dtype(dtype)
      end = int(offset) + int(count) * dtype.itemsize
      if end > len(self._plain):
        raise ValueError(f"it has {len(self._plain)} bytes, and something in it ends at {end}")
      order = override_order or self.byte_order
      return self._plain[int(offset) : end].view(
        dtype if order == "I" else dtype.newbyteorder(order)
      )

  return Reader
