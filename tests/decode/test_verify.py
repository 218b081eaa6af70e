"""Verify rules: what they accept, and the distribution of what they put out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax.decode import base, verify
from sbdjax.decode.tokens import Categorical, Greedy
from sbdjax.errors import UsageError
from tests.reference import statistics

V = 5


def random_logits(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=(*shape, V)).astype(np.float32) * 1.5


def softmax(x):
  x = np.exp(np.asarray(x, np.float64))
  return x / x.sum(-1, keepdims=True)


@pytest.mark.parametrize(
  "ok, expected", [([1, 1, 0, 1], 2), ([0, 1, 1, 1], 0), ([1, 1, 1, 1], 4), ([], 0)]
)
def test_prefix_length(ok, expected):
  assert verify.prefix_length(jnp.array([ok], bool)).tolist() == [expected]


def test_exact_match_takes_what_the_target_chooses():
  target = random_logits(3, 4)
  best = target.argmax(-1)
  draft = best[:, :3].copy()
  draft[1, 1] = (draft[1, 1] + 1) % V
  count = np.array([3, 3, 2])
  keys = jax.random.split(jax.random.key(0), (3, 4))
  verdict = verify.ExactMatch()(Greedy(), keys, draft, count, None, target)
  assert verdict.n_accepted_B.tolist() == [3, 1, 2]  # row 2 has two drafts only
  assert verdict.token_B.tolist() == [best[0, 3], best[1, 1], best[2, 2]]


@pytest.mark.parametrize("seed", range(3))
def test_the_residual_is_the_positive_part_of_the_difference(seed):
  p, q = softmax(random_logits(1, seed=seed)[0]), softmax(random_logits(1, seed=seed + 9)[0])
  got = np.exp(np.asarray(verify.residual_log_probs(jnp.log(q), jnp.log(p)), np.float64))
  np.testing.assert_allclose(got, np.maximum(p - q, 0), atol=1e-6)


def test_the_residual_of_equal_distributions_is_the_target():
  log_p = jnp.log(jnp.asarray(softmax(random_logits(1)[0]), jnp.float32))
  np.testing.assert_array_equal(verify.residual_log_probs(log_p, log_p), log_p)
  certain = jnp.array([0.0, -jnp.inf, -jnp.inf])
  np.testing.assert_array_equal(verify.residual_log_probs(certain, certain), certain)


def _speculate(temperature, rows=100_000):
  """Frequencies of the first two tokens that come out of two drafts, and their target."""
  rule, token = verify.Resample(), Categorical(temperature)
  assert not rule.common_noise
  q = random_logits(2, seed=1)  # of the two drafts
  first = random_logits(1, seed=2)[0]  # p(x1)
  second = jnp.asarray(random_logits(V, seed=3))  # p(x2 | x1)
  third = random_logits(1, seed=4)[0]

  @jax.jit
  def run(key):
    keys = jax.random.split(key, (rows, 4))
    draft_keys = jax.vmap(verify.draft_key)
    draw = jax.vmap(token, (0, None))
    draft = jnp.stack([draw(draft_keys(keys[:, j]), q[j]) for j in range(2)], axis=1)
    target = jnp.stack(
      [jnp.broadcast_to(first, (rows, V)), second[draft[:, 0]], jnp.broadcast_to(third, (rows, V))],
      axis=1,
    )
    draft_logits = jnp.broadcast_to(q, (rows, 2, V))
    v = rule(token, keys[:, :3], draft, jnp.full(rows, 2), draft_logits, target)
    # A row whose first draft was rejected goes on with a fresh draw of the second token.
    x1 = jnp.where(v.n_accepted_B > 0, draft[:, 0], v.token_B)
    fresh = jax.vmap(token)(keys[:, 3], second[x1])
    x2 = jnp.where(
      v.n_accepted_B == 2, draft[:, 1], jnp.where(v.n_accepted_B == 1, v.token_B, fresh)
    )
    return x1 * V + x2, v.n_accepted_B

  pairs, accepted = jax.device_get(run(jax.random.key(7)))
  p1, p2 = softmax(first / temperature), softmax(second / temperature)
  overlap = np.minimum(p1, softmax(q[0] / temperature)).sum()
  return np.bincount(pairs, minlength=V * V), (p1[:, None] * p2).ravel(), accepted, overlap


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_resample_keeps_the_target_distribution(temperature):
  counts, expected, accepted, overlap = _speculate(temperature)
  assert statistics.chi_square_p(counts, expected) > 1e-3
  # The first draft is accepted as often as the distributions overlap (Leviathan et al., 3.5).
  assert abs((accepted > 0).mean() - overlap) < 0.006


def test_append_stops_at_eos_and_limits():
  limits = base.Limits(8, (9,), np.array([8, 8, 2, 3]))
  out = base.start(np.array([[1], [2], [3], [4]]), np.ones(4, np.int32), 9, fill=0)
  tokens = np.array([[5, 6, 7], [5, 9, 7], [5, 6, 9], [5, 6, 9]])
  out = base.append(out, tokens, np.array([2, 3, 3, 3]), limits, width=np.array([1, 2, 3, 4]))
  texts = [
    row[:n].tolist() for row, n in zip(np.asarray(out.tokens_BxC), out.length_B, strict=True)
  ]
  assert texts == [[1, 5, 6], [2, 5, 9], [3, 5, 6], [4, 5, 6, 9]]
  assert out.done_B.tolist() == [False, True, True, True]
  assert out.eos_B.tolist() == [False, True, False, True]
  assert out.nfe_B.tolist() == [1] * 4 and out.query_tokens_B.tolist() == [1, 2, 3, 4]
  # Nothing is written beyond what is kept.
  assert all(not row[n:].any() for row, n in zip(out.tokens_BxC, out.length_B, strict=True))


def test_resample_needs_draws():
  verify.ExactMatch().check(Greedy())
  verify.Resample().check(Categorical(0.5))
  with pytest.raises(UsageError, match="set a temperature above 0"):
    verify.Resample().check(Greedy())
