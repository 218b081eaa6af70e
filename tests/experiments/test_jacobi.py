"""The tables of the Jacobi Forcing experiment."""

from types import SimpleNamespace

import numpy as np

from tests.experiments.test_ssmd import script


def test_speed_up_at_fixed_tokens_per_forward():
  """Forwards of one row count, and a block gives no more tokens than it has."""
  tables = script("jacobi_stories260k/tables")
  point = lambda size, tokens, seconds: dict(block_size=size, tokens=tokens, seconds=seconds)
  points = [point(1, 1, 2.0), point(1, 4, 9.0), point(4, 4, 2.5), point(8, 8, 8.0)]
  assert tables.speedups({"points": points}, 2) == [(4, 1.6), (8, 0.5)]
  assert tables.speedups({"points": points}, 5) == [(8, 1.25)]


def frame(text, committed, canvas):
  return SimpleNamespace(result=SimpleNamespace(tokens=text), committed=committed, canvas=canvas)


def test_points_of_several_blocks():
  """What is there after each forward: text, then drafts; the canvas' last place is for a token to come."""
  trajectory = script("jacobi_stories260k/trajectory")
  frames = [
    frame([], 0, [7, 8, 0, -1]),
    frame([5], 0, [5, 8, 9, 0]),  # the forward made 5 final
    frame([5, 6, 7, 8], 1, [6, 7, 8, 0]),
  ]
  points = trajectory.points_of(frames, 4)
  np.testing.assert_array_equal(points, [[7, 8, -1, -1], [5, 8, 9, -1], [5, 6, 7, 8]])


def test_kinds_of_tokens():
  """Right from the left; right, and staying so, after a wrong one; wrong."""
  trajectory = script("jacobi_stories260k/trajectory")
  found = trajectory.kinds(np.array([[9, 2, 3, 9], [1, 9, 3, 4], [1, 2, 3, 4]]))
  wrong, prefix, stays = trajectory.WRONG, trajectory.PREFIX, trajectory.STATIONARY
  expected = [
    [wrong, wrong, stays, wrong],
    [prefix, wrong, stays, stays],
    [prefix] * 4,
  ]
  np.testing.assert_array_equal(found, expected)
