"""A mask: causal attention to the last w tokens."""

from sbdjax import pytree
from sbdjax.masks.rule import Intervals, Tile, chunks, iota, rows_of


@pytree.dataclass
class LastTokens:
  """Query i sees keys i - w + 1 .. i.

  Attributes:
    window: w (static).
  """

  window: int = pytree.static(default=4)

  def intervals(self, num_queries: int, num_keys: int) -> Intervals:
    """One interval of keys for every query; the second is empty."""
    del num_keys
    i_T = iota(num_queries)
    return rows_of((i_T - self.window + 1).clip(0), i_T + 1, 0, 0 * i_T)

  def tiles(self, num_queries: int, num_keys: int, size: int) -> list[Tile]:
    """Static bounds: what any query of a tile may see."""
    del num_keys
    return [
      Tile(a, b, ((max(0, a - self.window + 1), b),)) for a, b in chunks(0, num_queries, size)
    ]
