"""Self-speculative sampling: frequencies against the exact likelihood of the same network."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax.decode import base, ssmd, windows
from sbdjax.errors import UsageError
from sbdjax.likelihood import elbo
from sbdjax.likelihood import ssmd as likelihood
from sbdjax.nn.sigma import HeadConfig
from sbdjax.sigma_lm import make_sigma_lm
from tests import models
from tests.jit import quick_jit
from tests.reference import statistics

D, S = 3, 3
MASK = S
MODEL = make_sigma_lm(
  models.config(
    vocab_size=S + 1, mask_id=MASK, num_layers=1, d_model=8, num_heads=2, num_kv_heads=2, d_ff=8
  ),
  HeadConfig(),
)
PARAMS = models.random_params(MODEL, seed=3)
TEXTS = np.array(list(itertools.product(range(S), repeat=D)))
ROWS, BATCHES = 20_000, 10

WINDOWS = {"full": windows.full(), "two": windows.constant(2), "cosine": windows.cosine(0.4)}


def number_of(tokens_BxD):
  return tokens_BxD @ S ** np.arange(D)[::-1]


@functools.cache
def sampled(window, n_inner, first_equal=False, given=()):
  """(counts of all texts, mean (outer loops, rejections, passes)) of 2e5 rows of the sampler."""
  limits = base.Limits(D if not given else 1, (), None if not given else 0)
  sampler = ssmd.make_sampler(MODEL, limits, WINDOWS[window], n_inner, first_equal=first_equal)
  prompt = jnp.broadcast_to(jnp.asarray(given, jnp.int32), (ROWS, len(given)))
  lengths = jnp.full((ROWS,), len(given), jnp.int32)

  @jax.jit
  def run(params):
    def batch(key):
      state = base.decode(sampler, params, prompt, lengths, jax.random.split(key, ROWS))
      out = state.out
      counts = [out.nfe_B, out.drafted_B - out.accepted_B, state.causal_passes_B]
      return out.tokens_BxC[:, :D], jnp.stack([jnp.mean(x) for x in counts])

    return jax.lax.map(batch, jax.random.split(jax.random.key(0), BATCHES))

  tokens, means = jax.device_get(run(PARAMS))
  counts = np.bincount(number_of(tokens.reshape(-1, D)), minlength=S**D)
  return counts, means.mean(axis=0)


@functools.partial(quick_jit, static_argnames="first_equal")
def _exact(params, texts, sigma, window, n_inner, start, first_equal):
  def one(tokens):
    rows = elbo.pass_log_probs(MODEL, params, tokens, sigma, first_equal=first_equal)
    return likelihood.exact(*rows, window, n_inner, counts=(), start=start)

  return jax.lax.map(one, texts)


def exactly(window, n_inner, first_equal=False, given=()):
  """(probabilities of all texts, mean counts): averages over all orders, given places first."""
  first = tuple(p for p, token in enumerate(given) if token != MASK)
  rest = [p for p in range(D) if p not in first]
  probability, means = 0.0, 0.0
  orders = [first + order for order in itertools.permutations(rest)]
  fits = np.all([TEXTS[:, p] == given[p] for p in first], axis=0) if first else np.ones(S**D)
  for order in orders:
    got = _exact(
      PARAMS,
      TEXTS.astype(np.int32),
      np.array(order, np.int32),
      WINDOWS[window](D),
      np.float32(n_inner),
      np.int32(len(first)),
      first_equal=first_equal,
    )
    p = np.exp(np.asarray(got.log_prob, np.float64)) * fits / len(orders)
    probability, means = probability + p, means + p @ np.asarray(got.mean_counts)
  return probability, means


CASES = [
  dict(window="full", n_inner=1),
  dict(window="cosine", n_inner=2),
  dict(window="full", n_inner=math.inf, given=(MASK, 1, MASK)),
  dict(window="two", n_inner=1, first_equal=True),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_samples_have_the_distribution_their_likelihood_says(case):
  counts, means = sampled(**case)
  probability, expected = exactly(**case)
  assert counts.sum() == ROWS * BATCHES
  assert abs(probability.sum() - 1) < 1e-5
  assert statistics.chi_square_p(counts, probability) > 1e-3
  # No count varies by more than 1 a row or so: five standard errors are below 0.012.
  np.testing.assert_allclose(means, expected, atol=0.012)
  assert expected[1] > 0.1  # rejections happen


def test_the_chi_square_would_see_the_paths_that_are_left_out():
  """The same frequencies against the distribution of one other setting."""
  counts, _ = sampled(**CASES[0])
  for other in (dict(window="two", n_inner=1), dict(window="full", n_inner=math.inf)):
    assert statistics.chi_square_p(counts, exactly(**other)[0]) < 1e-6
