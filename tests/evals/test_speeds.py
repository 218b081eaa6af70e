"""The order in which points are timed."""

from types import SimpleNamespace

from sbdjax.evals import speeds


def test_points_take_turns_on_every_batch():
  log = []

  def run_of(name, seconds):
    def run(prompts):
      log.append((name, prompts[0][0]))
      return SimpleNamespace(tokens=10 * len(prompts), decode_seconds=seconds, prefill_seconds=0.5)

    return run

  each = speeds.batches([[1], [2], [3], [4], [5]], 2)
  assert each == [[[1], [2]], [[3], [4]]]  # all of one size
  found = speeds.in_turns([run_of("a", 1.0), run_of("b", 3.0)], each, turns=2)
  assert log[:2] == [("a", 1), ("b", 1)]  # warm
  assert log[2:6] == [("a", 1), ("b", 1), ("b", 3), ("a", 3)]  # rotated by one at every batch
  assert log[6:] == [("b", 1), ("a", 1), ("a", 3), ("b", 3)]
  assert found[1]["seconds"] == [[3.0, 3.0], [3.0, 3.0]] and found[0]["tokens"] == [20, 20]
  assert speeds.batches([[1], [2]], 8) == [[[1], [2]]]
