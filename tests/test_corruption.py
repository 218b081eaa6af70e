"""Equation 13: eta is uniform, tokens are masked independently with probability eta."""

import jax
import numpy as np
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
