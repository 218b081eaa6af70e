"""The mask of scoring: texts that begin alike, whose common beginnings are run once."""

from __future__ import annotations

import jax

from sbdjax import checks, pytree
from sbdjax.masks.rule import Intervals, Tile, chunks, iota, rows_of


@pytree.dataclass
class SharedBeginnings(pytree.Struct):
  """Several texts in a row, in runs of tokens: [cache slots 0..S-1 | T new tokens].

  A token sees the committed slots, the whole run that its own run continues (`before`), and its own
  run up to itself. So the options of a question are runs that continue the question, and do not see
  each other; a text alone is one run that continues an empty one.

  Attributes:
    before_start_BxT, before_end_BxT: columns of the run that each token's run continues; equal where
      it continues none.
    start_BxT: first column of each token's own run.
    length_B: committed slots of each row; None: there is no cache.
  """

  before_start_BxT: jax.Array
  before_end_BxT: jax.Array
  start_BxT: jax.Array
  length_B: jax.Array | None = None

  def __post_init__(self) -> None:
    checks.fields(self)

  def intervals(self, num_queries: int, num_keys: int) -> Intervals:
    new = num_keys - num_queries  # index of the first new token
    own = (
      new + self.before_start_BxT,
      new + self.before_end_BxT,
      new + self.start_BxT,
      new + iota(num_queries) + 1,
    )
    committed = () if self.length_B is None else (0, self.length_B[:, None])
    return rows_of(*committed, *own)

  def tiles(self, num_queries: int, num_keys: int, size: int) -> list[Tile]:
    new = num_keys - num_queries
    cached = ((0, new),) if new else ()
    return [Tile(a, b, (*cached, (new, new + b))) for a, b in chunks(0, num_queries, size)]
