"""Noise levels are uniform, tokens masked independently with that probability."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from sbdjax import corruption

ROWS, LENGTH, MASK = 4000, 40, 9
TOKENS = np.random.default_rng(0).integers(0, MASK, (ROWS, LENGTH)).astype(np.int32)


@jax.jit
def _draw(key, ids, tokens):
  return corruption.mask_at_random(corruption.example_keys(key, ids), tokens, MASK)


def draw(ids=None, seed=0, tokens=TOKENS):
  ids = np.arange(len(tokens)) if ids is None else ids
  return [np.asarray(x) for x in _draw(jax.random.key(seed), ids.astype(np.int32), tokens)]


def test_masked_tokens_and_no_others_become_the_mask():
  noisy, masked, _ = draw()
  np.testing.assert_array_equal(noisy, np.where(masked, MASK, TOKENS))
  assert masked.dtype == bool and noisy.dtype == np.int32


def test_eta_is_uniform_on_the_half_open_interval():
  eta = draw()[2]
  assert eta.min() > 0 and eta.max() <= 1
  assert scipy.stats.kstest(eta, "uniform").pvalue > 1e-3


def test_rows_that_are_not_masked_whole_have_a_uniform_eta():
  """Which rows are masked whole says nothing about the others."""
  keys = corruption.example_keys(jax.random.key(0), np.arange(ROWS, dtype=np.int32))
  _, masked, eta = corruption.mask_at_random(keys, TOKENS, MASK, full_fraction=0.5)
  whole = np.asarray(eta) == 1
  assert abs(whole.mean() - 0.5) < 0.04 and np.asarray(masked)[whole].all()
  assert scipy.stats.kstest(eta[~whole], "uniform").pvalue > 1e-3


def test_tokens_are_masked_independently_with_probability_eta():
  _, masked, eta = draw()
  # Given eta, the count is binomial: its standardised value has mean 0 and variance 1.
  inside = (eta > 0.05) & (eta < 0.95)
  count, eta_in = masked[inside].sum(axis=1), eta[inside]
  z = (count - LENGTH * eta_in) / np.sqrt(LENGTH * eta_in * (1 - eta_in))
  assert abs(z.mean()) < 4 / np.sqrt(len(z)) and abs(z.var() - 1) < 0.1
  # Every position alike, and neighbours independent once eta is taken out.
  residual = (masked[inside] - eta_in[:, None]) / np.sqrt(eta_in * (1 - eta_in))[:, None]
  assert np.abs(residual.mean(axis=0)).max() < 4.5 / np.sqrt(len(z))
  neighbours = (residual[:, 1:] * residual[:, :-1]).mean(axis=0)
  assert np.abs(neighbours).max() < 4.5 / np.sqrt(len(z))


def test_noise_belongs_to_the_example_not_to_its_row():
  noisy, _, eta = draw()
  order = np.random.default_rng(1).permutation(ROWS)[:50]
  again, _, eta_again = draw(ids=order, tokens=TOKENS[order])
  np.testing.assert_array_equal(again, noisy[order])
  np.testing.assert_array_equal(eta_again, eta[order])
  assert (draw(seed=1)[2] != eta).mean() > 0.99


# --- blocks ---------------------------------------------------------------------------------------

MASKABLE = np.random.default_rng(1).random((ROWS, LENGTH)) < 0.9


@jax.jit
def _draw_blocks(key, ids, block_size, low, stratified):
  draw = lambda s: corruption.mask_blocks(
    corruption.example_keys(key, ids), TOKENS, MASKABLE, MASK, block_size, low=low, stratified=s
  )
  return jax.tree.map(lambda a, b: jnp.where(stratified, a, b), draw(True), draw(False))


def draw_blocks(block_size=4, low=0.0, stratified=True, seed=0):
  ids = np.arange(ROWS, dtype=np.int32)
  drawn = _draw_blocks(jax.random.key(seed), ids, block_size, low, stratified)
  return [np.asarray(x) for x in drawn]


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("block_size", [1, 4, 7, 40, 64])
def test_each_block_has_one_uniform_level(block_size, stratified):
  noisy, masked, t = draw_blocks(block_size, stratified=stratified)
  np.testing.assert_array_equal(noisy, np.where(masked, MASK, TOKENS))
  assert not masked[~MASKABLE].any()
  for start in range(0, LENGTH, block_size):
    block = t[:, start : start + block_size]
    assert (block == block[:, :1]).all() and block.min() > 0 and block.max() <= 1
    assert scipy.stats.kstest(block[:, 0], "uniform").pvalue > 1e-4, start


@pytest.mark.parametrize("block_size", [4, 7])
def test_stratified_levels_of_a_row_are_spread_evenly_and_others_independent(block_size):
  starts = np.arange(0, LENGTH, block_size)
  even = np.sort(draw_blocks(block_size)[2][:, starts], axis=1)
  np.testing.assert_allclose(np.diff(even, axis=1), 1 / len(starts), atol=1e-5)
  free = draw_blocks(block_size, stratified=False)[2][:, starts]
  correlation = np.corrcoef(free.T) - np.eye(len(starts))
  assert np.abs(correlation).max() < 5 / np.sqrt(ROWS)


def test_tokens_of_a_block_are_masked_with_the_probability_of_its_level():
  _, masked, t = draw_blocks()
  inside = MASKABLE & (t > 0.05) & (t < 0.95)
  z = ((masked - t) / np.sqrt(t * (1 - t)))[inside]
  assert abs(z.mean()) < 4.5 / np.sqrt(len(z)) and abs(z.var() - 1) < 0.05
  both = inside[:, ::4] & inside[:, 1::4]
  neighbours = (masked - t)[:, ::4][both] * (masked - t)[:, 1::4][both]
  assert abs(neighbours.mean()) < 4.5 * neighbours.std() / np.sqrt(len(neighbours))


def test_clipped_levels_fill_their_range():
  t = draw_blocks(low=0.3)[2][:, ::4].ravel()
  assert scipy.stats.kstest(t[:ROWS], "uniform", (0.3, 0.7)).pvalue > 1e-4


# --- orders --------------------------------------------------------------------------------------

TARGETS = np.zeros((ROWS, 6), bool)
TARGETS[:, [0, 2, 3]] = True
PADDING = np.zeros((ROWS, 6), bool)
PADDING[:, 5] = True


@functools.cache
def orders(schedule="linear", seed=0, first_id=0, rows=ROWS, full=False):
  ids = np.arange(first_id, first_id + rows, dtype=np.int32)
  targets, padding = TARGETS[:rows], PADDING[:rows]
  if full:  # every place is a target, and there are enough of them to tell schedules apart
    targets, padding = np.ones((rows, 12), bool), np.zeros((rows, 12), bool)
  draw = jax.jit(lambda key, *args: corruption.random_order(
    key, *args, corruption.MASK_SCHEDULES[schedule]
  ))  # fmt: skip
  return jax.tree.map(np.asarray, draw(jax.random.key(seed), ids, targets, padding))


def test_given_places_come_first_and_padding_last():
  order = orders()
  np.testing.assert_array_equal(np.sort(order.sigma[:, :2]), np.tile([1, 4], (ROWS, 1)))
  np.testing.assert_array_equal(np.sort(order.sigma[:, 2:5]), np.tile([0, 2, 3], (ROWS, 1)))
  assert (order.sigma[:, 5] == 5).all() and (order.targets == 3).all()
  np.testing.assert_array_equal(order.revealed, 5 - order.hidden)
  places, columns = np.asarray(order.hidden_places()), np.asarray(order.hidden_columns())
  for row in range(50):
    last = order.sigma[row, order.revealed[row] : 5]
    np.testing.assert_array_equal(np.flatnonzero(places[row]), np.sort(last))
    np.testing.assert_array_equal(order.sigma[row, columns[row]], last)


def test_every_order_is_as_likely_as_any_other():
  code = orders().sigma[:, 2:5] @ [100, 10, 1]
  counts = np.unique(code, return_counts=True)[1]
  assert len(counts) == 6 and scipy.stats.chisquare(counts).pvalue > 1e-3
  given = orders().sigma[:, 0] == 1
  assert scipy.stats.binomtest(int(given.sum()), ROWS).pvalue > 1e-3


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_counts_follow_the_schedule_evenly(schedule):
  """P(n) = t(n / D) - t((n - 1) / D); consecutive examples are spread more evenly than by chance."""
  counts = np.bincount(orders(schedule, full=True).hidden, minlength=13)
  share = np.arange(13) / 12
  time = share if schedule == "linear" else 1 - 2 / np.pi * np.arccos(share)
  assert counts[0] == 0
  np.testing.assert_allclose(counts[1:], ROWS * np.diff(time), atol=6)


def test_time_is_uniform_in_each_example():
  draw = jax.jit(
    jax.vmap(lambda seed: corruption.spread_uniform(jax.random.key(seed), jnp.arange(3)))
  )
  t = np.asarray(draw(np.arange(2000)))
  assert t.min() > 0 and t.max() <= 1
  for column in t.T:
    assert scipy.stats.kstest(column, "uniform").pvalue > 1e-3


def test_an_order_does_not_depend_on_how_the_batch_is_cut():
  whole, part = orders(), orders(first_id=100, rows=7)
  for a, b in zip(whole, part, strict=True):
    np.testing.assert_array_equal(a[100:107], b)
  assert (orders(seed=1).sigma != whole.sigma).any()


def test_a_row_without_targets_hides_nothing():
  draw = functools.partial(corruption.random_order, schedule=corruption.MASK_SCHEDULES["linear"])
  nothing = np.zeros((2, 4), bool)
  order = jax.jit(draw)(jax.random.key(0), np.arange(2), nothing, nothing)
  assert not np.any(order.hidden) and not np.any(order.hidden_columns())
