"""Attention masks as rules: small frozen dataclasses that say which keys a query sees.

Every mask this library needs shows a query a few intervals of keys,

    visible(q, s)  <=>  start0[q] <= s < end0[q]  or  start1[q] <= s < end1[q]  or ...,

so a rule is described completely by O(T) integers: two intervals for every training mask and for
plain decoding, more for trees of drafts only. A rule gives two things:

* `intervals(num_queries, num_keys)`: those integers, computed in the graph. Block sizes and
  lengths may be traced, so one compilation serves every block size.
* `tiles(num_queries, num_keys, size)`: *static* bounds, a list of query tiles with the key ranges
  that any query of the tile may see whatever the traced values are. The XLA attention computes
  only those ranges; kernels derive their exact tile map from the intervals.

`dense(rule, T, S)` is the boolean matrix, the oracle everything else is tested against.

Keys are numbered along the concatenation of everything attended to: for a forward with a cache,
the `capacity` cache slots come first and the T tokens of this forward after them.
"""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from sbdjax import pytree

# Half-open, disjoint key intervals of every query row: (start0, end0, start1, end1, ...), int32
# [B or 1, T] each. Empty: end <= start.
Intervals = tuple[jax.Array, ...]


class Tile(NamedTuple):
  """Static bounds: queries [start, stop) see no key outside the ranges in `keys`."""

  start: int
  stop: int
  keys: tuple[tuple[int, int], ...]


class Mask(Protocol):
  """What attention asks of a rule."""

  def intervals(self, num_queries: int, num_keys: int) -> Intervals: ...

  def tiles(self, num_queries: int, num_keys: int, size: int) -> list[Tile]: ...


class Documents(NamedTuple):
  """Bounds of the document each position belongs to, for packed rows; int32 [B, L] each."""

  start_BxL: jax.Array
  end_BxL: jax.Array


def document_bounds(segment_ids_BxL: jax.Array) -> Documents:
  """First index and one past the last index of the run of equal ids around each position."""
  ids = segment_ids_BxL
  length = ids.shape[1]
  index_L = jnp.arange(length, dtype=jnp.int32)
  change_BxL = ids[:, 1:] != ids[:, :-1]
  edge_Bx1 = jnp.ones((ids.shape[0], 1), bool)
  first_BxL = jnp.concatenate([edge_Bx1, change_BxL], axis=1)
  last_BxL = jnp.concatenate([change_BxL, edge_Bx1], axis=1)
  start_BxL = jax.lax.cummax(jnp.where(first_BxL, index_L, 0), axis=1)
  end_BxL = jax.lax.cummin(jnp.where(last_BxL, index_L + 1, length), axis=1, reverse=True)
  return Documents(start_BxL, end_BxL)


def dense(mask: Mask, num_queries: int, num_keys: int) -> jax.Array:
  """The rule as a boolean matrix [B or 1, T, S]: True where query t sees key s."""
  return visible(mask.intervals(num_queries, num_keys), jnp.arange(num_keys, dtype=jnp.int32))


def visible(intervals: Intervals, keys_S: jax.Array) -> jax.Array:
  """`intervals` spelled out on the given key indices: bool [B or 1, T, S]."""
  bounds = [x[..., None] for x in intervals]
  inside = [(keys_S >= a) & (keys_S < b) for a, b in zip(bounds[::2], bounds[1::2], strict=True)]
  return functools.reduce(jnp.logical_or, inside)


def _chunks(start: int, stop: int, size: int) -> list[tuple[int, int]]:
  return [(a, min(a + size, stop)) for a in range(start, stop, size)]


def _rows(*values) -> Intervals:
  """Broadcasts scalars, [T] and [B, T] arrays to one [B or 1, T] shape."""
  values = [jnp.atleast_2d(jnp.asarray(v, jnp.int32)) for v in values]
  return tuple(jnp.broadcast_arrays(*values))


def _iota(n: int) -> jax.Array:
  return jnp.arange(n, dtype=jnp.int32)


def _causal_rows(length: int, num_intervals: int = 2) -> Intervals:
  i_L = _iota(length)
  return _rows(0, i_L + 1, *(2 * (num_intervals - 1) * [jnp.zeros_like(i_L)]))


def _stack(upper: Intervals, lower: Intervals) -> Intervals:
  """The query rows of `upper`, the same for every row of the batch, and under them those of `lower`."""
  batch = lower[0].shape[0]
  return tuple(
    jnp.concatenate([jnp.broadcast_to(u, (batch, u.shape[1])), v], axis=1)
    for u, v in zip(upper, lower, strict=True)
  )


@pytree.dataclass
class Causal:
  """Query i sees keys 0..i; inside its own document if `documents` is given."""

  documents: Documents | None = None

  def intervals(self, num_queries, num_keys):
    del num_keys
    i_T = _iota(num_queries)
    start = 0 if self.documents is None else self.documents.start_BxL
    return _rows(start, i_T + 1, 0, jnp.zeros_like(i_T))

  def tiles(self, num_queries, num_keys, size):
    del num_keys
    return [Tile(a, b, ((0, b),)) for a, b in _chunks(0, num_queries, size)]


@pytree.dataclass
class Full:
  """Every query sees every key below `length_B` (all keys where it is None)."""

  length_B: jax.Array | None = None

  def intervals(self, num_queries, num_keys):
    end = num_keys if self.length_B is None else self.length_B[:, None]
    return _rows(jnp.zeros_like(_iota(num_queries)), end, 0, 0)

  def tiles(self, num_queries, num_keys, size):
    return [Tile(a, b, ((0, num_keys),)) for a, b in _chunks(0, num_queries, size)]


@pytree.dataclass
class BlockCausal:
  """Query i sees its own block and all earlier ones: floor(s / k) <= floor(i / k).

  Attributes:
    block_size: k, int32 scalar, may be traced; blocks are counted from position 0.
    documents: bounds of packed documents; a query sees nothing outside its own.
    max_block_size: static bound on k, for the static tile bounds.
  """

  block_size: jax.Array | int
  documents: Documents | None = None
  max_block_size: int = pytree.static(default=64)

  def intervals(self, num_queries, num_keys):
    end_T = jnp.minimum((_iota(num_queries) // self.block_size + 1) * self.block_size, num_keys)
    if self.documents is None:
      return _rows(0, end_T, 0, 0)
    docs = self.documents
    return _rows(docs.start_BxL, jnp.minimum(end_T, docs.end_BxL), 0, 0)

  def tiles(self, num_queries, num_keys, size):
    reach = self.max_block_size - 1
    return [Tile(a, b, ((0, min(b + reach, num_keys)),)) for a, b in _chunks(0, num_queries, size)]


def _open_blocks(length: int, block_size, documents: Documents | None) -> Intervals:
  """The second half of [clean; masked]: the clean keys of blocks before one's own, and that block."""
  i_L = _iota(length)
  first = jnp.zeros((1, length), jnp.int32) if documents is None else documents.start_BxL
  last = jnp.full((1, length), length, jnp.int32) if documents is None else documents.end_BxL
  block_L = (i_L // block_size) * block_size
  return _rows(
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

  def intervals(self, num_queries, num_keys):
    length = num_queries // 2
    del num_keys
    i_L = _iota(length)
    first = 0 if self.documents is None else self.documents.start_BxL
    clean = _rows(first, i_L + 1, 0, jnp.zeros_like(i_L))
    masked = _open_blocks(length, self.block_size, self.documents)
    return tuple(jnp.concatenate([c, m], axis=1) for c, m in zip(clean, masked, strict=True))

  def tiles(self, num_queries, num_keys, size):
    del num_keys
    length, reach = num_queries // 2, self.max_block_size - 1
    clean = [Tile(a, b, ((0, b),)) for a, b in _chunks(0, length, size)]
    masked = [
      Tile(
        length + a,
        length + b,
        ((0, b - 1), (length + max(0, a - reach), length + min(length, b + reach))),
      )
      for a, b in _chunks(0, length, size)
    ]
    return clean + masked


@pytree.dataclass
class OpenBlock:
  """Inference mask without a cache (Figures 3 and 10): a causal prefix, then one open block.

  Query i < boundary sees keys 0..i; query i >= boundary sees keys 0..end-1.
  """

  boundary_B: jax.Array
  end_B: jax.Array

  def intervals(self, num_queries, num_keys):
    del num_keys
    i_T = _iota(num_queries)
    boundary, end = self.boundary_B[:, None], self.end_B[:, None]
    return _rows(0, jnp.where(i_T < boundary, i_T + 1, end), 0, 0)

  def tiles(self, num_queries, num_keys, size):
    return Full().tiles(num_queries, num_keys, size)


@pytree.dataclass
class Cached:
  """Decoding mask with a cache: [cache slots 0..S-1 | T new tokens].

  The new tokens are `num_causal` causal ones followed by one open, bidirectional block; the
  causal ones are valid from column `start_B` on (so a row may bring fewer than `num_causal`,
  right-aligned). Every new token sees the committed slots [0, length_B).

    prefill, AR, verification:  num_causal = T
    inside an SBD block:        num_causal = 0
    first forward of a block:   num_causal = k, T = 2k  (the finished block, then k masks)

  Attributes:
    length_B: committed slots of each row.
    start_B: first valid new column of each row.
    num_causal: how many of the T new tokens are causal (static).
  """

  length_B: jax.Array
  start_B: jax.Array
  num_causal: int = pytree.static()

  def intervals(self, num_queries, num_keys):
    capacity = num_keys - num_queries
    j_T = _iota(num_queries)
    end_T = jnp.where(j_T < self.num_causal, j_T + 1, num_queries)
    return _rows(
      jnp.zeros_like(j_T),
      self.length_B[:, None],
      capacity + self.start_B[:, None],
      capacity + end_T,
    )

  def tiles(self, num_queries, num_keys, size):
    capacity = num_keys - num_queries
    tiles = []
    for a, b in _chunks(0, num_queries, size):
      stop = num_queries if b > self.num_causal else b
      tiles.append(Tile(a, b, ((0, capacity), (capacity, capacity + stop))))
    return tiles


@pytree.dataclass
class DraftTree:
  """Verifying a chain of drafts while drafting behind it: [cache | chain | groups of new tokens].

  Chain token j sees the committed slots and chain tokens 0..j. A group is one token or one open
  block; it sees the committed slots, chain tokens 0..after, at most one group of a single token
  (`via`), and itself in both directions. Groups do not see each other otherwise.

  Attributes:
    length_B: committed slots of each row.
    after_BxG: last chain token each group sees, int32 in [0, chain); may be traced.
    via_BxG: index among the groups of the single token a group continues, -1 for none.
    chain: number of chain tokens (static).
    sizes: tokens of each group (static).
  """

  length_B: jax.Array
  after_BxG: jax.Array
  via_BxG: jax.Array
  chain: int = pytree.static()
  sizes: tuple[int, ...] = pytree.static()

  def intervals(self, num_queries, num_keys):
    new = num_keys - num_queries  # index of the first new token
    j_C = _iota(self.chain)
    in_chain = _rows(0, self.length_B[:, None], new, new + 1 + j_C, *(4 * [jnp.zeros_like(j_C)]))
    if not self.sizes:
      return in_chain
    ends = list(itertools.accumulate(self.sizes, initial=new + self.chain))
    start_G, end_G = jnp.array(ends[:-1], jnp.int32), jnp.array(ends[1:], jnp.int32)
    via_start_BxG = start_G[jnp.maximum(self.via_BxG, 0)]
    group_T = np.repeat(np.arange(len(self.sizes)), self.sizes)
    in_groups = _rows(
      0,
      self.length_B[:, None],
      new,
      new + 1 + self.after_BxG[:, group_T],
      via_start_BxG[:, group_T],
      (via_start_BxG + (self.via_BxG >= 0))[:, group_T],
      start_G[group_T],
      end_G[group_T],
    )
    return tuple(jnp.concatenate([c, g], axis=1) for c, g in zip(in_chain, in_groups, strict=True))

  def tiles(self, num_queries, num_keys, size):
    return Full().tiles(num_queries, num_keys, size)


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

  def intervals(self, num_queries, num_keys):
    del num_keys
    length = num_queries // 2
    clean = BlockCausal(self.block_size, self.documents).intervals(length, length)
    noisy = _open_blocks(length, self.block_size, self.documents)
    return tuple(jnp.concatenate([c, n], axis=1) for c, n in zip(clean, noisy, strict=True))

  def tiles(self, num_queries, num_keys, size):
    fields = (self.block_size, self.documents, self.max_block_size)
    length = num_queries // 2
    noisy = SBDTrain(*fields).tiles(num_queries, num_keys, size)
    return BlockCausal(*fields).tiles(length, length, size) + [
      tile for tile in noisy if tile.start >= length
    ]


@pytree.dataclass
class Branches:
  """Several drafts of one text at once: [cache slots 0..S-1 | d branches of T columns each].

  Column c of every branch stands at position `origin + c`. A query sees the committed slots and,
  of its own branch, the columns up to the end of the text; of a block-causal model, up to the end
  of its own block. Branches do not see each other. The `lead` first columns of a branch are in the
  cache already: they are run again for their logits alone, and nobody sees them.

  Attributes:
    length_B: committed slots of each row.
    origin_B: position of column 0; may be -1 with a leading column.
    end_B: positions from here on do not exist.
    branches: d (static).
    lead: leading columns (static).
    block_size: k of a block-causal model, blocks counted from position 0; None: full (static).
  """

  length_B: jax.Array
  origin_B: jax.Array
  end_B: jax.Array
  branches: int = pytree.static(default=1)
  lead: int = pytree.static(default=0)
  block_size: int | None = pytree.static(default=None)

  def intervals(self, num_queries, num_keys):
    columns = num_queries // self.branches
    column_T = np.tile(np.arange(columns), self.branches)
    first_T = num_keys - num_queries + np.arange(num_queries) - column_T
    origin = self.origin_B[:, None]
    stop = self.end_B[:, None] - origin
    if self.block_size is not None:
      # One more block than that of the position; with the sum no negative number is divided.
      next_BxT = origin + column_T + self.block_size
      block_end_BxT = jax.lax.div(next_BxT, jnp.full_like(next_BxT, self.block_size))
      block_end_BxT = block_end_BxT * self.block_size
      stop = jnp.minimum(stop, block_end_BxT - origin)
    return _rows(
      0, self.length_B[:, None], first_T + self.lead, first_T + jnp.minimum(stop, columns)
    )

  def tiles(self, num_queries, num_keys, size):
    new, columns = num_keys - num_queries, num_queries // self.branches
    return [
      Tile(a, b, ((0, new), (new + a // columns * columns, new + -(-b // columns) * columns)))
      for a, b in _chunks(0, num_queries, size)
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

  def _first_of_window(self, j):
    """The first noisy column of the window that column `j` is in."""
    columns = self.num_noisy if self.window is None else self.window * self.block_size
    return j // columns * columns

  def intervals(self, num_queries, num_keys):
    clean, first = num_queries - self.num_noisy, num_keys - self.num_noisy
    j_M = _iota(self.num_noisy)
    from_M = self._first_of_window(j_M)
    noisy = _rows(0, self.start_B[:, None] + from_M, first + from_M, first + j_M + 1)
    return _stack(_causal_rows(clean), noisy)

  def tiles(self, num_queries, num_keys, size):
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
      for a, b in _chunks(0, self.num_noisy, size)
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

  def _edges(self, j):
    """First noisy columns of the window and of the block that column `j` is in."""
    columns = self.window * self.block_size
    return j // columns * columns, j // self.block_size * self.block_size

  def intervals(self, num_queries, num_keys):
    clean, first = num_queries - self.num_noisy, num_keys - self.num_noisy
    j_M = _iota(self.num_noisy)
    start, (window_M, block_M) = self.start_B[:, None], self._edges(j_M)
    noisy = _rows(
      0,
      start,
      start + window_M,
      start + block_M,
      first,
      first + window_M,
      first + block_M,
      first + j_M + 1,
    )
    return _stack(_causal_rows(clean, num_intervals=4), noisy)

  def tiles(self, num_queries, num_keys, size):
    clean, first = num_queries - self.num_noisy, num_keys - self.num_noisy
    longest = first - self.num_noisy
    tiles = Causal().tiles(clean, clean, size)
    for a, b in _chunks(0, self.num_noisy, size):
      (window_a, block_a), (window_b, block_b) = self._edges(a), self._edges(b - 1)
      keys = (
        (0, longest),
        (max(longest, window_a), longest + block_b),
        (first, first + window_b),
        (first + max(window_b, block_a), first + b),
      )
      tiles.append(Tile(clean + a, clean + b, keys))
    return tiles
