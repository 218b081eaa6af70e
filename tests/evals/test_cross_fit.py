"""Choosing on one half and measuring on the other."""

import numpy as np

from sbdjax.evals import cross_fit


def test_every_text_is_measured_under_what_was_chosen_without_it():
  seen = []

  def choose(on):
    seen.append(set(on.tolist()))
    return len(seen)

  (first, at), (second, others) = cross_fit.cross_fitted(7, choose)
  assert (first, second) == (1, 2)
  assert not seen[0] & set(at) and not seen[1] & set(others)
  assert seen[0] | set(at) == seen[1] | set(others) == set(range(7))
  assert sorted([*at, *others]) == list(range(7))
  halves = cross_fit.halves(7)
  assert [x.tolist() for x in halves] == [x.tolist() for x in cross_fit.halves(7)]
  assert halves[0].tolist() != cross_fit.halves(7, seed=1)[0].tolist()


def test_nothing_where_nothing_will_do_on_a_half():
  assert cross_fit.cross_fitted(4, lambda on: "a" if 0 in on else None) is None


def test_the_best_of_equals_looks_no_better_than_it_is():
  """200 settings of chance: the best on all texts is far above a half, the one chosen apart is not."""
  right = np.random.default_rng(0).random((200, 300)) < 0.5
  best = right.mean(axis=1).max()
  halves = cross_fit.cross_fitted(300, lambda on: int(right[:, on].mean(axis=1).argmax()))
  apart = np.mean([right[k, i] for k, on in halves for i in on])
  assert best > 0.57 and abs(apart - 0.5) < 0.05
