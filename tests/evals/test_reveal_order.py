"""Errors by order of reveal."""

from sbdjax.evals import reveal_order


def test_alignment():
  right = [1, 2, 3, 4, 5]
  assert reveal_order.align(right, right) == (["right"] * 5, 0)
  assert reveal_order.align([1, 2, 9, 4, 5], right) == (
    ["right", "right", "substituted", "right", "right"], 0
  )  # fmt: skip
  # What follows an insertion or a deletion is right.
  assert reveal_order.align([1, 2, 3, 3, 4, 5], right).kinds.count("inserted") == 1
  assert reveal_order.align([1, 2, 4, 5], right) == (["right"] * 4, 1)
  assert reveal_order.align([], right) == ([], 5)


def test_tokens_masked_to_the_left():
  assert reveal_order.masked_left([0, 1, 2]) == [0, 0, 0]
  # The last one first; two in one forward.
  assert reveal_order.masked_left([2, 1, 1, 0]) == [0, 1, 2, 3]


def test_counts():
  found = reveal_order.count([[1, 9, 3], [1, 3]], [[1, 2, 3], [1, 2, 3]], [[0, 1, 0], [0, 1]])
  assert found == {
    "deleted": 1,
    "by_masked_left": {
      "0": {"tokens": 4, "substituted": 1, "inserted": 0},
      "2": {"tokens": 1, "substituted": 0, "inserted": 0},
    },
  }
