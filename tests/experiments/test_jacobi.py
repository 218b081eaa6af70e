"""The tables of the Jacobi Forcing experiment."""

from tests.experiments.test_ssmd import script


def test_speed_up_at_fixed_tokens_per_forward():
  """Forwards of one row count, and a block gives no more tokens than it has."""
  tables = script("jacobi_stories260k/tables")
  point = lambda size, tokens, seconds: dict(block_size=size, tokens=tokens, seconds=seconds)
  points = [point(1, 1, 2.0), point(1, 4, 9.0), point(4, 4, 2.5), point(8, 8, 8.0)]
  assert tables.speedups({"points": points}, 2) == [(4, 1.6), (8, 0.5)]
  assert tables.speedups({"points": points}, 5) == [(8, 1.25)]
