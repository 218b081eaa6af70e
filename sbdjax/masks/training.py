"""Masks of training: clean text and, after it, its noisy version, in one forward."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp

from sbdjax import checks, pytree
from sbdjax.masks.rule import (
  BlockCausal,
  Causal,
  Documents,
  Intervals,
  Tile,
  causal_rows,
  chunks,
  iota,
  rows_of,
)

# A number, or many of them.
_Index = TypeVar("_Index", int, jax.Array)


def _stack(upper: Intervals, lower: Intervals) -> Intervals:
  """The query rows of `upper`, the same for every row of the batch, and under them those of `lower`."""
  batch = lower[0].shape[0]
  return tuple(
    jnp.concatenate([jnp.broadcast_to(u, (batch, u.shape[1])), v], axis=1)
    for u, v in zip(upper, lower, strict=True)
  )


def _open_blocks(
  length: int, block_size: jax.Array | int, documents: Documents | None
) -> Intervals:
  """The second half of [clean; masked]: the clean keys of blocks before one's own, and that block."""
  i_L = iota(length)
  first = jnp.zeros((1, length), jnp.int32) if documents is None else documents.start_BxL
  last = jnp.full((1, length), length, jnp.int32) if documents is None else documents.end_BxL
  block_L = (i_L // block_size) * block_size
  return rows_of(
    first,
    block_L,
    length + jnp.maximum(block_L, first),
    length + jnp.minimum(block_L + block_size, last),
  )


@pytree.dataclass
class SBDTrain:
  """Training mask of Set Block Decoding over [clean x; masked x-hat], 2L tokens (Figures 8, 9).

  Clean query i sees clean keys 0..i. Masked query i, in block b = floor(i / k), sees the clean
  keys of blocks before b and all masked keys of block b. Both halves use positions 0..L-1.

  Attributes:
    block_size: k, int32 scalar, may be traced.
    documents: bounds [B, L] of packed documents (of one half); None: one document a row.
    max_block_size: static bound on k, for the static tile bounds.
  """

  block_size: jax.Array | int
  documents: Documents | None = None
  max_block_size: int = pytree.static(default=16)

  def intervals(self, num_queries: int, num_keys: int) -> Intervals:
    length = num_queries // 2
    del num_keys
    i_L = iota(length)
    first = 0 if self.documents is None else self.documents.start_BxL
    clean = rows_of(first, i_L + 1, 0, jnp.zeros_like(i_L))
    masked = _open_blocks(length, self.block_size, self.documents)
    return tuple(jnp.concatenate([c, m], axis=1) for c, m in zip(clean, masked, strict=True))

  def tiles(self, num_queries: int, num_keys: int, size: int) -> list[Tile]:
    del num_keys
    length, reach = num_queries // 2, self.max_block_size - 1
    clean = [Tile(a, b, ((0, b),)) for a, b in chunks(0, length, size)]
    masked = [
      Tile(
        length + a,
        length + b,
        ((0, b - 1), (length + max(0, a - reach), length + min(length, b + reach))),
      )
      for a, b in chunks(0, length, size)
    ]
    return clean + masked

  def num_open(self, num_queries: int) -> int:
    return num_queries // 2


@pytree.dataclass
class BlockDiffusionTrain:
  """Training mask of block diffusion (BD3-LM) over [clean x; noisy x_t], 2L tokens.

  Clean query i sees the clean keys of its own block and of all earlier ones. Noisy query i, in
  block b = floor(i / k), sees the clean keys of blocks before b and all noisy keys of block b. So
  each noisy block sees what a block-causal decoder sees: finished blocks, and itself.

  Attributes:
    block_size: k, int32 scalar, may be traced.
    documents: bounds [B, L] of packed documents (of one half); None: one document a row.
    max_block_size: static bound on k, for the static tile bounds.
  """

  block_size: jax.Array | int
  documents: Documents | None = None
  max_block_size: int = pytree.static(default=16)

  def intervals(self, num_queries: int, num_keys: int) -> Intervals:
    del num_keys
    length = num_queries // 2
    clean = BlockCausal(self.block_size, self.documents).intervals(length, length)
    noisy = _open_blocks(length, self.block_size, self.documents)
    return tuple(jnp.concatenate([c, n], axis=1) for c, n in zip(clean, noisy, strict=True))

  def tiles(self, num_queries: int, num_keys: int, size: int) -> list[Tile]:
    fields = (self.block_size, self.documents, self.max_block_size)
    length = num_queries // 2
    noisy = SBDTrain(*fields).tiles(num_queries, num_keys, size)
    return BlockCausal(*fields).tiles(length, length, size) + [
      tile for tile in noisy if tile.start >= length
    ]


@pytree.dataclass
class JacobiTrain:
  """Training mask of Jacobi Forcing over [clean text; noisy blocks], H and M tokens (Figure 2).

  The clean tokens stand at positions 0..H-1 of one text. The noisy ones are points of Jacobi
  trajectories, blocks of k tokens that stand at positions `start`, `start` + 1, ... of the same
  text: what is before `start` (the prompt) has no noisy version. The interleaved layout of the
  paper has the same visibility and, cut into tiles, more of them half empty.

  Clean query i sees clean keys 0..i. Noisy query j, in block b = floor(j / k), sees the noisy keys
  of its own block up to itself, and of the text before its block: the noisy tokens of the blocks
  of its own window of w blocks, the clean tokens of everything earlier.

    w = 1:       every block after clean text (clean context, CLLM)
    w = None:    every block after noisy blocks alone (noisy context, NC: the paper's choice)
    in between:  the mask of the public window trainer, not the paper's NC-IC

  With a cache of H slots that holds the clean text, T = M queries are the noisy half alone.

  Attributes:
    start_B: int32, position of the first noisy token; `start` + M <= H.
    block_size: k (static).
    num_noisy: M, a multiple of k (static).
    window: w, in blocks counted from the first noisy one (static).
  """

  start_B: jax.Array
  block_size: int = pytree.static()
  num_noisy: int = pytree.static()
  window: int | None = pytree.static(default=None)

  def __post_init__(self) -> None:
    checks.fields(self)

  def _first_of_window(self, j: _Index) -> _Index:
    """The first noisy column of the window that column `j` is in."""
    columns = self.num_noisy if self.window is None else self.window * self.block_size
    return j // columns * columns

  def intervals(self, num_queries: int, num_keys: int) -> Intervals:
    clean, first = num_queries - self.num_noisy, num_keys - self.num_noisy
    j_M = iota(self.num_noisy)
    from_M = self._first_of_window(j_M)
    noisy = rows_of(0, self.start_B[:, None] + from_M, first + from_M, first + j_M + 1)
    return _stack(causal_rows(clean), noisy)

  def tiles(self, num_queries: int, num_keys: int, size: int) -> list[Tile]:
    clean, first = num_queries - self.num_noisy, num_keys - self.num_noisy
    longest = first - self.num_noisy  # the largest `start`
    return Causal().tiles(clean, clean, size) + [
      Tile(
        clean + a,
        clean + b,
        (
          (0, longest + self._first_of_window(b - 1)),
          (first + self._first_of_window(a), first + b),
        ),
      )
      for a, b in chunks(0, self.num_noisy, size)
    ]


@pytree.dataclass
class JacobiTrainCleanWindow:
  """Jacobi Forcing with clean context inside a window (NC-IC, Table 5); else as `JacobiTrain`.

  Noisy query j sees the prompt, the noisy tokens of earlier windows, the clean tokens of its own
  window before its block, and its own block up to itself: up to four intervals.
  """

  start_B: jax.Array
  block_size: int = pytree.static()
  num_noisy: int = pytree.static()
  window: int = pytree.static()

  def __post_init__(self) -> None:
    checks.fields(self)

  def _edges(self, j: _Index) -> tuple[_Index, _Index]:
    """First noisy columns of the window and of the block that column `j` is in."""
    columns = self.window * self.block_size
    return j // columns * columns, j // self.block_size * self.block_size

  def intervals(self, num_queries: int, num_keys: int) -> Intervals:
    clean, first = num_queries - self.num_noisy, num_keys - self.num_noisy
    j_M = iota(self.num_noisy)
    start, (window_M, block_M) = self.start_B[:, None], self._edges(j_M)
    noisy = rows_of(
      0,
      start,
      start + window_M,
      start + block_M,
      first,
      first + window_M,
      first + block_M,
      first + j_M + 1,
    )
    return _stack(causal_rows(clean, num_intervals=4), noisy)

  def tiles(self, num_queries: int, num_keys: int, size: int) -> list[Tile]:
    clean, first = num_queries - self.num_noisy, num_keys - self.num_noisy
    longest = first - self.num_noisy
    tiles = Causal().tiles(clean, clean, size)
    for a, b in chunks(0, self.num_noisy, size):
      (window_a, block_a), (window_b, block_b) = self._edges(a), self._edges(b - 1)
      keys = (
        (0, longest),
        (max(longest, window_a), longest + block_b),
        (first, first + window_b),
        (first + max(window_b, block_a), first + b),
      )
      tiles.append(Tile(clean + a, clean + b, keys))
    return tiles
