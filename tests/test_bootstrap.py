"""Bootstrap intervals against all resamples there are, the delta method, and their coverage."""

import itertools

import numpy as np
import pytest

from sbdjax import bootstrap


def test_the_interval_is_that_of_all_samples_with_replacement():
  values = [1.0, 1.1, 1.5, 4.0]
  for statistic, numpy in ((bootstrap.mean, np.mean), (bootstrap.median, np.median)):
    every = [numpy(sample) for sample in itertools.product(values, repeat=4)]
    found = bootstrap.interval(values, statistic, share=0.8)
    assert found.value == pytest.approx(numpy(values))
    # They are few numbers: a quantile of the draws is the exact one, or a neighbour at a boundary.
    assert found.low == pytest.approx(np.quantile(every, 0.1), abs=0.06)
    assert found.high == pytest.approx(np.quantile(every, 0.9), abs=0.06)
  assert bootstrap.interval([2.0] * 5) == (2.0, 2.0, 2.0)


def test_columns_are_drawn_together():
  tokens, seconds = [50, 80, 20, 70], [2.0, 3.0, 2.5, 1.0]
  pairs = list(itertools.product(range(4), repeat=4))
  every = [sum(tokens[i] for i in at) / sum(seconds[i] for i in at) for at in pairs]
  found = bootstrap.ratio_of_sums(tokens, seconds, resamples=40_000, share=0.8)
  assert found.value == pytest.approx(sum(tokens) / sum(seconds))
  assert found.low == pytest.approx(np.quantile(every, 0.1), rel=0.02)
  assert found.high == pytest.approx(np.quantile(every, 0.9), rel=0.02)


def test_ratios_of_sums_have_the_error_of_the_delta_method():
  rng = np.random.default_rng(0)
  tokens, seconds = rng.integers(50, 100, 40), rng.uniform(1, 2, 40)
  ratio = bootstrap.ratio_of_sums(tokens, seconds)
  assert ratio.low < ratio.value < ratio.high
  residual = tokens - ratio.value * seconds
  error = residual.std(ddof=1) / np.sqrt(40) / seconds.mean()
  assert (ratio.high - ratio.low) / 2 == pytest.approx(1.96 * error, rel=0.15)


def test_a_standard_error_gives_normal_bounds():
  assert bootstrap.normal(2.0, 0.1) == pytest.approx((2.0, 1.804, 2.196))
  assert bootstrap.normal(2.0, None) == (2.0, None, None)


def test_a_reference_is_drawn_with_the_same_texts():
  rng = np.random.default_rng(0)
  nats, tokens = rng.uniform(10, 300, 40), rng.integers(50, 100, 40)
  # 10 % more on every text is no matter of which texts are drawn, however much they differ.
  found = bootstrap.relative_difference(1.1 * nats, tokens, nats, tokens)
  assert found == pytest.approx((0.1, 0.1, 0.1))
  ratio = bootstrap.paired_ratio(tokens, nats, tokens, 2 * nats)
  assert ratio == pytest.approx((2, 2, 2))
  shuffled = rng.permutation(40)
  apart = bootstrap.relative_difference(1.1 * nats[shuffled], tokens[shuffled], nats, tokens)
  assert apart.value == pytest.approx(0.1) and apart.high - apart.low > 0.1


def test_95_of_100_intervals_hold_what_is_true():
  """The percentile interval of a mean of 60 skewed numbers holds it a little less often."""
  rng, held = np.random.default_rng(1), 0
  for _ in range(400):
    _, low, high = bootstrap.interval(rng.exponential(2.0, 60), resamples=500)
    held += low <= 2.0 <= high
  assert 0.90 <= held / 400 <= 0.975


def test_resamples_do_not_depend_on_how_many_are_held_at_once(monkeypatch):
  values = np.random.default_rng(0).normal(size=7)
  ways = (
    lambda **how: bootstrap.interval(values, resamples=50, **how),
    lambda **how: bootstrap.ratio_of_sums(values, np.ones(7), resamples=50, **how),
  )
  at_once = [way() for way in ways]
  assert at_once[0] == pytest.approx(at_once[1])  # a mean in two ways: the same texts are drawn
  monkeypatch.setattr(bootstrap, "_CHUNK", 21)
  assert [way() for way in ways] == [pytest.approx(found) for found in at_once]
  assert [way(seed=1) for way in ways] != at_once


def test_many_ratios_at_once_are_those_one_by_one(monkeypatch):
  """Texts in lists of different lengths, equal pairs, and more than are held at a time."""
  rng = np.random.default_rng(2)
  pairs = [(rng.integers(1, 9, n).tolist(), rng.uniform(1, 2, n).tolist()) for n in (4, 7, 4, 4)]
  pairs.append(pairs[0])
  one_by_one = [bootstrap.of_sums(pair, np.divide, resamples=60) for pair in pairs]
  for held in (bootstrap._CHUNK, 120):
    monkeypatch.setattr(bootstrap, "_CHUNK", held)
    found = bootstrap.ratios_of_sums(pairs, resamples=60)
    assert found == [pytest.approx(each, rel=1e-12) for each in one_by_one]
  for wrong in ([], []), ([1], [1, 2]):
    with pytest.raises(ValueError, match="nothing to draw from"):
      bootstrap.ratios_of_sums([pairs[0], wrong])


def test_seeds_are_said_with_the_least_and_the_most():
  assert bootstrap.spread([1.0, 4.0, 2.5]) == (2.5, 1.0, 4.0)
  assert bootstrap.spread([1.25]) == (1.25, None, None)


def test_shown():
  found = bootstrap.Interval(0.0644, 0.0371, 0.093)
  assert found.shown(1, scale=100, sign="+") == "+6.4 [+3.7, +9.3]"
  assert found.shown(1, 100, unit=" %") == "6.4 % [3.7, 9.3]"
  assert bootstrap.Interval(1.0).shown() == "1.00"
  with pytest.raises(ValueError, match="nothing to draw"):
    bootstrap.interval([])
