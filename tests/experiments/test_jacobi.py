"""The tables of the Jacobi Forcing experiment."""

import json
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


def test_a_training_is_compared_with_the_first_of_its_seed(tmp_path):
  trainings = script("jacobi_stories260k/trainings")
  sweep = {"num_prompts": 2, "prompt_tokens": 4, "split": "test", "judge": "j", "checkpoint": "c"}

  def row(label, tokens):
    settings = {"sweep": sweep | {"label": label}, "decoder": {"name": "jacobi"}}
    each = {"tokens": [tokens, tokens], "nfe": [10, 10]}
    return {"settings": settings, "tpf": tokens / 10, "distinct_2": 0.1, "each": each}

  records = {
    "a": [row("first", 10), row("other", 20)],
    "b": [row("first, seed 1", 10), row("other, seed 1", 30), row("first, seed 2", 20), row("other, seed 2", 20)],
  }  # fmt: skip
  for name, rows in records.items():
    (tmp_path / name).write_text("".join(json.dumps(r) + "\n" for r in rows))
  table = trainings.Trainings(str(tmp_path / "a"), str(tmp_path / "b"))
  assert table.mean("other", trainings.TIMES) == (2.0, 1.0, 3.0)
  lines = table.means("tokens per forward", trainings.TIMES, trainings.COST).splitlines()
  assert lines[2] == "| first | 1.33 [1.00, 2.00] |  |  |"
  assert lines[3] == "| other | 2.33 [2.00, 3.00] | 2.000 [1.000, 3.000] |  |"
