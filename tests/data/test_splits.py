"""Sizes of train, validation and test."""

import pytest

from sbdjax.data.splits import split_range
from sbdjax.errors import DataError, UsageError

SPLITS = ("train", "validation", "test")


def test_full_text8_follows_the_published_convention():
  ranges = [split_range(100_000_000, split) for split in SPLITS]
  assert ranges == [(0, 90_000_000), (90_000_000, 95_000_000), (95_000_000, 100_000_000)]


def test_given_counts_and_fractions():
  sizes = (6_000_000, 200_000, 200_000)
  ranges = [split_range(6_400_000, split, sizes) for split in SPLITS]
  assert ranges == [(0, 6_000_000), (6_000_000, 6_200_000), (6_200_000, 6_400_000)]
  assert split_range(1000, "validation", (0.5, 0.25, 0.25)) == (500, 750)


@pytest.mark.parametrize("total", [3, 4, 7, 10, 19, 21, 1234])
def test_splits_are_disjoint_and_none_is_empty(total):
  ranges = [split_range(total, split) for split in SPLITS]
  assert all(a < b for a, b in ranges)
  assert [a for a, _ in ranges] == [0, ranges[0][1], ranges[1][1]]
  assert ranges[2][1] <= total


def test_impossible_sizes():
  with pytest.raises(UsageError, match="ask for more than"):
    split_range(10, "train", (9, 1, 1))
  with pytest.raises(DataError, match="test split .* is empty"):
    split_range(10, "test", (9, 1, 0))
  with pytest.raises(DataError, match="empty"):
    split_range(2, "train")
