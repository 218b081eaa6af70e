"""Masks of decoding: cache slots, and the tokens of a forward after them."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from sbdjax import checks, pytree
from sbdjax.errors import UsageError
from sbdjax.masks.rule import Full, Intervals, Tile, chunks, iota, rows_of


@pytree.dataclass
class OpenBlock:
  """Inference mask without a cache (Figures 3 and 10): a causal prefix, then one open block.

  Query i < boundary sees keys 0..i; query i >= boundary sees keys 0..end-1.
  """

  boundary_B: jax.Array
  end_B: jax.Array

  def __post_init__(self) -> None:
    checks.fields(self)

  def intervals(self, num_queries: int, num_keys: int) -> Intervals:
    del num_keys
    i_T = iota(num_queries)
    boundary, end = self.boundary_B[:, None], self.end_B[:, None]
    return rows_of(0, jnp.where(i_T < boundary, i_T + 1, end), 0, 0)

  def num_open(self, num_queries: int) -> int:
    """Raises UsageError: rows have other boundaries, and an adapter acts on the same columns of all."""
    raise UsageError("a model with an adapter has no mask OpenBlock: decode it with a cache")

  def tiles(self, num_queries: int, num_keys: int, size: int) -> list[Tile]:
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

  def __post_init__(self) -> None:
    checks.fields(self)

  def intervals(self, num_queries: int, num_keys: int) -> Intervals:
    capacity = num_keys - num_queries
    j_T = iota(num_queries)
    end_T = jnp.where(j_T < self.num_causal, j_T + 1, num_queries)
    return rows_of(
      jnp.zeros_like(j_T),
      self.length_B[:, None],
      capacity + self.start_B[:, None],
      capacity + end_T,
    )

  def tiles(self, num_queries: int, num_keys: int, size: int) -> list[Tile]:
    capacity = num_keys - num_queries
    tiles = []
    for a, b in chunks(0, num_queries, size):
      stop = num_queries if b > self.num_causal else b
      tiles.append(Tile(a, b, ((0, capacity), (capacity, capacity + stop))))
    return tiles

  def num_open(self, num_queries: int) -> int:
    return num_queries - self.num_causal


@pytree.dataclass
class DraftTree:
  """Verifying drafts while drafting after them: [cache | chain | branch | groups of new tokens].

  Chain token j sees the committed slots and chain tokens 0..j. The branch is a second chain from
  chain token 0 on: its token j sees the committed slots, chain token 0 and branch tokens 0..j. A
  group is one token or one open block; it sees the committed slots, chain tokens 0..after, at most
  one group of a single token (`via`), and itself in both directions. Nothing else sees anything
  else. Single tokens come before open blocks.

  Attributes:
    length_B: committed slots of each row.
    after_BxG: last chain token each group sees, int32 in [0, chain); may be traced.
    via_BxG: index among the groups of the single token a group continues, -1 for none.
    chain: number of chain tokens (static).
    sizes: tokens of each group (static).
    branch: number of branch tokens (static).
  """

  length_B: jax.Array
  after_BxG: jax.Array
  via_BxG: jax.Array
  chain: int = pytree.static()
  sizes: tuple[int, ...] = pytree.static()
  branch: int = pytree.static(default=0)

  def __post_init__(self) -> None:
    checks.fields(self)

  def intervals(self, num_queries: int, num_keys: int) -> Intervals:
    new = num_keys - num_queries  # index of the first new token
    parts = [self._chain_rows(new)]
    parts += [self._branch_rows(new)] if self.branch else []
    parts += [self._group_rows(new)] if self.sizes else []
    return tuple(jnp.concatenate(rows, axis=1) for rows in zip(*parts, strict=True))

  def _chain_rows(self, new: int) -> Intervals:
    j_C = iota(self.chain)
    return rows_of(0, self.length_B[:, None], new, new + 1 + j_C, *(4 * [jnp.zeros_like(j_C)]))

  def _branch_rows(self, new: int) -> Intervals:
    start, j_R = new + self.chain, iota(self.branch)
    return rows_of(0, self.length_B[:, None], new, new + 1, start, start + 1 + j_R, 0, 0)

  def _group_rows(self, new: int) -> Intervals:
    ends = list(itertools.accumulate(self.sizes, initial=new + self.chain + self.branch))
    start_G, end_G = jnp.array(ends[:-1], jnp.int32), jnp.array(ends[1:], jnp.int32)
    via_start_BxG = start_G[jnp.maximum(self.via_BxG, 0)]
    group_T = np.repeat(np.arange(len(self.sizes)), self.sizes)
    return rows_of(
      0,
      self.length_B[:, None],
      new,
      new + 1 + self.after_BxG[:, group_T],
      via_start_BxG[:, group_T],
      (via_start_BxG + (self.via_BxG >= 0))[:, group_T],
      start_G[group_T],
      end_G[group_T],
    )

  def num_open(self, num_queries: int) -> int:
    """The tokens of the open blocks. All others are drafts to verify: the clean model's."""
    blocks = list(itertools.takewhile(lambda size: size > 1, reversed(self.sizes)))
    if any(size > 1 for size in self.sizes[: len(self.sizes) - len(blocks)]):
      raise UsageError(f"sizes={self.sizes}: single tokens must come before open blocks")
    return sum(blocks)

  def tiles(self, num_queries: int, num_keys: int, size: int) -> list[Tile]:
    return Full().tiles(num_queries, num_keys, size)


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

  def __post_init__(self) -> None:
    checks.fields(self)

  def intervals(self, num_queries: int, num_keys: int) -> Intervals:
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
    return rows_of(
      0, self.length_B[:, None], first_T + self.lead, first_T + jnp.minimum(stop, columns)
    )

  def tiles(self, num_queries: int, num_keys: int, size: int) -> list[Tile]:
    new, columns = num_keys - num_queries, num_queries // self.branches
    return [
      Tile(a, b, ((0, new), (new + a // columns * columns, new + -(-b // columns) * columns)))
      for a, b in chunks(0, num_queries, size)
    ]
