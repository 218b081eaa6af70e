"""n-gram measures, counted by hand."""

import pytest

from sbdjax.evals import diversity

TEXTS = [[1, 2, 1, 2, 1], [2, 1, 3]]


def test_distinct_counts_over_all_texts_and_never_across_two():
  assert diversity.distinct(TEXTS, 1) == pytest.approx(3 / 8)
  # 12 21 12 21 | 21 13: three kinds of six. Joined, 1|2 would be one more.
  assert diversity.distinct(TEXTS, 2) == pytest.approx(3 / 6)
  assert diversity.distinct(TEXTS, 3) == pytest.approx(3 / 4)  # 121 212 121 | 213
  assert diversity.distinct([[5]], 2) == 0.0


def test_repetition_is_counted_within_each_text():
  assert diversity.repetition(TEXTS, 2) == pytest.approx(2 / 6)  # the second 12 and 21 of the first
  assert diversity.repetition([[1, 2], [1, 2]], 2) == 0.0
  assert diversity.repetition([[1]], 2) == 0.0
