"""Tensors of a GGUF file, dequantized one at a time by the package `gguf`."""

from __future__ import annotations

import functools
import math
import pathlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from sbdjax.data.gguf_header import Header, Located
from sbdjax.errors import CheckpointError
from sbdjax.interop.hf import tensor_files

# Their rows hold rotary pairs side by side in files of some architectures.
_QUERIES, _KEYS = ("attn_q.weight", "attn_q.bias"), ("attn_k.weight", "attn_k.bias")


class GgufTensor(NamedTuple):
  """One tensor, readable piece by piece. See `tensor_files.Readable`.

  Attributes:
    file: its GGUF file.
    dtype: name of its ggml type ("Q4_1").
    shape: its dimensions, outputs before inputs.
    start: offset of its first byte.
    heads: of a tensor whose outputs are heads with rotary pairs side by side: how many.
  """

  file: pathlib.Path
  dtype: str
  shape: tuple[int, ...]
  start: int
  heads: int = 0

  def __str__(self) -> str:
    return f"{self.dtype}{list(self.shape)}"

  @property
  def itemsize(self) -> int:
    return 4

  def read(self, rows: range | None = None) -> np.ndarray:
    """float32, with the rotary pairs of a head in Hugging Face's order, (i, i + Dh/2).

    Where there are `heads`, only the whole tensor can be read.

    Raises:
      CheckpointError: the file ends before it.
    """
    import gguf  # here: only GGUF files need it

    block, block_bytes = _block(self.dtype)
    row_bytes = self.shape[-1] // block * block_bytes
    shape, start = self.shape, self.start
    if rows is not None:
      start += rows.start * row_bytes * math.prod(shape[1:-1])
      shape = (len(rows), *shape[1:])
    raw = np.empty((*shape[:-1], row_bytes), np.uint8)
    tensor_files.read_into(self.file, start, raw.reshape(-1))
    x = gguf.dequantize(raw, gguf.GGMLQuantizationType[self.dtype]).reshape(shape)
    return to_half_pairs(x, self.heads) if self.heads else x


def to_half_pairs(x: np.ndarray, heads: int) -> np.ndarray:
  """Reorders the rows of each head from interleaved rotary pairs to (i, i + Dh/2).

  llama.cpp rotates Llama's channels (2i, 2i + 1), so its converter interleaves the rows of q and k
  (`LlamaModel.permute` in convert_hf_to_gguf.py); this is the inverse.
  """
  pairs = x.reshape(heads, -1, 2, *x.shape[1:])
  return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(x.shape)


@functools.cache
def _block(dtype: str) -> tuple[int, int]:
  """(numbers, bytes) of one block."""
  import gguf

  return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype]]


def of_header(header: Header) -> dict[str, GgufTensor]:
  """All tensors of a file, none of them read.

  Raises:
    CheckpointError: a type that the package `gguf` cannot dequantize.
  """

  def make(name: str, x: Located) -> GgufTensor:
    if not _is_readable(x.dtype):
      raise CheckpointError(
        f"{header.file}: tensor {name} has type {x.dtype}, which the package gguf cannot turn into "
        "numbers: get another quantization"
      )
    return GgufTensor(header.file, *x)

  return {name: make(name, x) for name, x in header.tensors.items()}


def interleaved(
  tensors: Mapping[str, GgufTensor], query_heads: int, key_heads: int
) -> dict[str, GgufTensor]:
  """`tensors`, those of q and k with their rows read back into Hugging Face's order."""

  def heads(name: str) -> int:
    return query_heads * name.endswith(_QUERIES) + key_heads * name.endswith(_KEYS)

  return {name: x._replace(heads=heads(name)) for name, x in tensors.items()}


@functools.cache
def _is_readable(dtype: str) -> bool:
  import gguf

  try:
    gguf.dequantize(np.zeros((1, _block(dtype)[1]), np.uint8), gguf.GGMLQuantizationType[dtype])
  except NotImplementedError:
    return False
  return True
