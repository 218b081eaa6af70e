"""The order in which points are timed."""

from types import SimpleNamespace

from sbdjax.evals import speeds


def test_points_take_turns_on_every_batch():
  log = []

  def run_of(name, seconds):
    def run(batch):
      log.append((name, batch.prompts[0][0]))
      return SimpleNamespace(
        tokens=10 * len(batch.prompts), decode_seconds=seconds, prefill_seconds=0.5
      )

    return run

  each = speeds.batches([[1], [2], [3], [4], [5]], 2)
  assert [list(batch.prompts) for batch in each] == [[[1], [2]], [[3], [4]]]  # all of one size
  assert [list(batch.numbers) for batch in each] == [[0, 1], [2, 3]]  # as where all are decoded
  found = speeds.in_turns([run_of("a", 1.0), run_of("b", 3.0)], each, turns=2)
  assert log[:2] == [("a", 1), ("b", 1)]  # warm
  assert log[2:6] == [("a", 1), ("b", 1), ("b", 3), ("a", 3)]  # rotated by one at every batch
  assert log[6:] == [("b", 1), ("a", 1), ("a", 3), ("b", 3)]
  assert found[1]["seconds"] == [[3.0, 3.0], [3.0, 3.0]] and found[0]["tokens"] == [20, 20]
  assert [list(batch.prompts) for batch in speeds.batches([[1], [2]], 8)] == [[[1], [2]]]


def test_every_program_runs_once_before_it_is_timed():
  log = []

  def run(batch):
    log.append(len(batch.prompts[0]))
    return SimpleNamespace(tokens=1, decode_seconds=1.0, prefill_seconds=0.0)

  each = speeds.batches([[1], [1] * 40], 1)
  speeds.in_turns([run], each, turns=1, warm=each)
  assert log == [1, 40, 1, 40]
