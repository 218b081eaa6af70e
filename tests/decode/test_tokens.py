"""Token choice: what may be drawn, and how often."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from sbdjax.decode import tokens
from sbdjax.decode.tokens import Categorical, Greedy, token_sampler
from sbdjax.errors import UsageError
from tests.reference import network

_RNG = np.random.default_rng(0)
LOGITS = (_RNG.normal(size=(3, 8)) * 1.5).astype(np.float32)
PROBS = network.softmax(LOGITS.astype(np.float64))


def kept(logits):
  return [set(np.flatnonzero(np.isfinite(row))) for row in np.asarray(logits)]


def draws(token, logits, count=20_000, seed=0):
  """[V] counts of independent draws."""
  keys = jax.random.split(jax.random.key(seed), count)
  drawn = jax.jit(jax.vmap(token, (0, None)))(keys, jnp.asarray(logits))
  return np.bincount(np.asarray(drawn), minlength=len(logits))


def assert_distribution(counts, probs):
  assert not counts[probs == 0].any()
  inside = probs > 0
  result = scipy.stats.chisquare(counts[inside], probs[inside] * counts.sum())
  assert result.pvalue > 1e-4, (counts, probs * counts.sum())


def test_greedy_takes_the_most_probable_and_the_lowest_id_on_ties():
  logits = jnp.array([[0.0, 2.0, 2.0], [3.0, 1.0, 2.0]])
  choice = Greedy()(jax.random.key(0), logits)
  np.testing.assert_array_equal(choice, [1, 0])
  assert choice.dtype == jnp.int32


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature(temperature):
  probs = network.softmax(LOGITS[0].astype(np.float64) / temperature)
  assert_distribution(draws(Categorical(temperature), LOGITS[0]), probs)


@pytest.mark.parametrize("top_k", [0, 1, 3, 8, 99])
def test_top_k_keeps_the_largest(top_k):
  for row, ours in zip(LOGITS, kept(tokens.limit_top_k(jnp.asarray(LOGITS), top_k)), strict=True):
    assert ours == set(np.argsort(-row)[: top_k or 8])


def test_top_k_keeps_all_that_tie_at_the_border():
  assert kept(tokens.limit_top_k(jnp.array([[1.0, 3.0, 1.0, 0.0]]), 2)) == [{0, 1, 2}]


@pytest.mark.parametrize("top_p", [0.01, 0.3, 0.7, 0.95, 1.0])
def test_top_p_keeps_the_smallest_set_that_reaches_the_mass(top_p):
  for row, ours in zip(PROBS, kept(tokens.nucleus(jnp.asarray(LOGITS), top_p)), strict=True):
    order, mass, expected = np.argsort(-row), 0.0, set()
    for token in order:
      if mass >= top_p:
        break
      expected.add(int(token))
      mass += row[token]
    assert ours == expected


def test_top_p_breaks_ties_towards_the_lowest_id():
  assert kept(tokens.nucleus(jnp.zeros((1, 4)), 0.5)) == [{0, 1}]


def test_top_k_is_cut_before_top_p_and_after_temperature():
  """The mass of top_p is that of the tempered, cut and renormalised distribution."""
  temperature, top_k, top_p = 1.7, 4, 0.8
  logits = LOGITS[1].astype(np.float64) / temperature
  order = np.argsort(-logits)[:top_k]
  probs = np.zeros(8)
  probs[order] = network.softmax(logits[order])
  mass = np.cumsum(probs[order])
  probs[order[np.searchsorted(mass, top_p) + 1 :]] = 0
  probs /= probs.sum()
  assert 1 < (probs > 0).sum() < top_k
  assert_distribution(draws(Categorical(temperature, top_k, top_p), LOGITS[1]), probs)


def test_a_token_left_out_is_never_drawn():
  logits = np.array([0.0, -1e30, 1.0], np.float32)
  assert draws(Categorical(100.0), logits)[1] == 0


def test_noise_has_the_high_dynamic_range():
  """Plain float32 Gumbel noise ends near 16.6 nats and never reaches a large vocabulary's tail."""
  keys, logits = jax.random.split(jax.random.key(0), 300), jnp.asarray(LOGITS[0])

  @jax.jit
  @jax.vmap
  def three_ways(key):
    ours = Categorical(1.0)(key, logits)
    return ours, *(jax.random.categorical(key, logits, mode=mode) for mode in ("high", "low"))

  ours, high, low = three_ways(keys)
  np.testing.assert_array_equal(ours, high)
  assert (np.asarray(ours) != np.asarray(low)).any()


def test_token_sampler_is_greedy_at_temperature_zero():
  key = jax.random.key(0)
  np.testing.assert_array_equal(token_sampler(0.0)(key, jnp.asarray(LOGITS)), LOGITS.argmax(-1))
  drawn = draws(token_sampler(1.0, top_k=2), LOGITS[0], 2000)
  assert (drawn > 0).sum() == 2


def test_log_probs_are_those_tokens_are_drawn_with():
  """Each alone: cut as the draws are, normalised, and with the frequencies of the draws."""
  token = Categorical(0.7, top_k=5, top_p=0.9)
  probs = np.exp(np.asarray(token.log_probs(jnp.asarray(LOGITS[2])), np.float64))
  assert 1 < (probs > 0).sum() <= 5 and abs(probs.sum() - 1) < 1e-6
  assert_distribution(draws(token, LOGITS[2]), probs)
  greedy = np.asarray(Greedy().log_probs(jnp.asarray(LOGITS)))
  assert (greedy.argmax(-1) == LOGITS.argmax(-1)).all()
  assert set(np.unique(greedy)) == {0.0, -np.inf} and (greedy == 0).sum() == len(LOGITS)


def test_temperature_is_traced():
  traced = []

  @jax.jit
  def run(token, key):
    traced.append(token)
    return token(key, jnp.asarray(LOGITS[0]))

  for temperature in (0.5, 2.0):
    token, key = Categorical(temperature), jax.random.key(3)
    assert run(token, key) == token(key, jnp.asarray(LOGITS[0]))
  assert len(traced) == 1
  run(Categorical(1.0, top_k=2), key)
  run(Greedy(), key)
  assert len(traced) == 3


@pytest.mark.parametrize(
  "settings",
  [
    dict(temperature=-1.0),
    dict(top_k=-1, temperature=1.0),
    dict(top_p=0.0, temperature=1.0),
    dict(top_p=1.5, temperature=1.0),
  ],
)
def test_senseless_settings_are_refused_in_one_line(settings):
  with pytest.raises(UsageError) as error:
    token_sampler(**settings)
  assert "\n" not in str(error.value)
