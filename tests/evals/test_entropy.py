"""Unigram entropy by hand."""

import math

import pytest

from sbdjax.evals.entropy import unigram_entropy


def test_entropy_is_averaged_over_texts():
  uniform, dull, uneven = [5, 1, 9, 7], [3, 3, 3, 3], [2, 2, 2, 4]
  assert unigram_entropy([uniform]) == pytest.approx(math.log(4))
  assert unigram_entropy([dull]) == 0.0
  one = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
  # Not that of all tokens together.
  assert unigram_entropy([uniform, dull, uneven]) == pytest.approx((math.log(4) + one) / 3)


@pytest.mark.parametrize("texts", [[], [[1], []]])
def test_nothing_has_no_entropy(texts):
  with pytest.raises(ValueError):
    unigram_entropy(texts)
