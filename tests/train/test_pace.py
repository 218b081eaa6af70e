"""How long a run will take, told after its first updates."""

import pytest

from sbdjax.train import pace


def told(start, total, seconds):
  """What is said in a run whose updates take so long each; the first one a hundred times that."""
  lines, now = [], [0.0]
  watch = pace.Pace(start, total, lines.append, lambda: now[0])
  for step in range(start + 1, total + 1):
    now[0] += seconds * (100 if step == start + 1 else 1)
    watch.update(step)
  return lines


def test_it_is_told_once_after_ten_updates_without_the_compiled_one():
  assert told(0, 100, 2.0) == ["about 3 min for the other 90 updates (2 s each)"]
  assert told(50, 100, 0.5) == ["about 20 s for the other 40 updates (0.5 s each)"]
  assert told(0, 10, 1.0) == [] and told(0, 3, 1.0) == []


@pytest.mark.parametrize(
  ("seconds", "text"),
  [
    (0.4, "0 s"),
    (89, "89 s"),
    (90, "2 min"),
    (5399, "90 min"),
    (5400, "1.5 h"),
    (130_000, "1.5 days"),
  ],
)
def test_units(seconds, text):
  assert pace.show(seconds) == text
