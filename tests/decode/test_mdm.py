"""Masked diffusion samplers on a table: their distribution, what they cost, and odd inputs."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax.corruption import MASK_SCHEDULES
from sbdjax.decode import base, mdm, sampling, select
from sbdjax.errors import UsageError
from sbdjax.lm import make_lm
from tests import models
from tests.jit import quick_jit
from tests.reference import statistics

D, S = 3, 3
MASK = S
# Logits of every position in every context. The mask token is always far ahead, and never drawn.
TABLE = np.random.default_rng(0).normal(size=((S + 1) ** D, D, S + 1)).astype(np.float32) * 1.5
TABLE[..., MASK] = 1e9
TEXTS = np.array(list(itertools.product(range(S), repeat=D)))
ROWS = 40_000


def number_of(tokens_xD, base_):
  return (tokens_xD * base_ ** np.arange(D)[::-1]).sum(-1)


def predict(params, tokens_BxC, end_B):
  """`TABLE`; positions behind the third one repeat it."""
  del end_B
  rows = jnp.asarray(params)[number_of(tokens_BxC[:, :D], S + 1)]
  return jnp.concatenate([rows, rows], axis=1)[:, : tokens_BxC.shape[1]]


def sampler_of(unmask, limits, choose=None):
  choose = sampling.categorical() if choose is None else choose
  return mdm.make_sampler(predict, MASK, limits, choose, unmask)


def sample(unmask, prompt=(), rows=ROWS, limits=None, **settings):
  """Final state of `rows` rows with the same prompt."""
  limits = base.Limits(D) if limits is None else limits
  prompt_BxP = np.broadcast_to(np.array(prompt, np.int32), (rows, len(prompt)))
  lengths = np.full(rows, len(prompt), np.int32)

  @quick_jit
  def run(params, key):
    return base.decode(sampler_of(unmask, limits, **settings), params, prompt_BxP, lengths, key)

  return jax.device_get(run(jnp.asarray(TABLE), jax.random.key(0)))


def probability(context, text, group):
  """Of the tokens of `text` at the positions of `group`, drawn independently in `context`."""
  logits = TABLE[number_of(np.array(context), S + 1)][:, :S].astype(np.float64)
  p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  return np.prod([p[d, text[d]] for d in group])


def planned(plans):
  """Probabilities of all texts, given [(weight, step of each position)]."""
  out = np.zeros(len(TEXTS))
  for row, text in enumerate(TEXTS):
    for weight, plan in plans:
      context, p = [MASK] * D, weight
      for step in sorted(set(plan)):
        group = [d for d in range(D) if plan[d] == step]
        p *= probability(context, text, group)
        context = [text[d] if d in group else context[d] for d in range(D)]
      out[row] += p
  return out


def frequencies(state):
  assert (state.out.tokens_BxC < MASK).all()
  return np.bincount(number_of(state.out.tokens_BxC[:, :D], S), minlength=S**D)


@pytest.mark.parametrize("name", ["cosine", pytest.param("linear", marks=pytest.mark.long)])
def test_ancestral_samples_have_the_distribution_of_the_reverse_process(name):
  steps = 2
  # Eq. 1 backwards: a mask at time t is revealed until s with (alpha_s - alpha_t) / (1 - alpha_t).
  alpha = [1 - float(MASK_SCHEDULES[name].share(1 - k / steps)) for k in range(steps + 1)]
  left, chance = 1.0, []
  for t, s in itertools.pairwise(alpha):
    chance.append(left * (s - t) / (1 - t))
    left -= chance[-1]
  assert abs(left) < 1e-6
  plans = [
    (np.prod([chance[k] for k in plan]), plan) for plan in itertools.product(range(steps), repeat=D)
  ]
  state = sample(mdm.ancestral(steps, MASK_SCHEDULES[name]))
  assert statistics.chi_square_p(frequencies(state), planned(plans)) > 1e-3
  nfe = np.bincount(state.out.nfe_B, minlength=3)
  by_nfe = [sum(w for w, plan in plans if len(set(plan)) == n) for n in range(3)]
  assert statistics.chi_square_p(nfe[1:], by_nfe[1:]) > 1e-3 and nfe[0] == 0


def test_first_hitting_is_one_token_a_forward_in_random_order():
  plans = [(1 / 6, plan) for plan in itertools.permutations(range(D))]
  state = sample(mdm.first_hitting())
  assert statistics.chi_square_p(frequencies(state), planned(plans)) > 1e-3
  assert (state.out.nfe_B == D).all()
  assert (np.sort(state.out.reveal_step_BxC, axis=1) == np.arange(D)).all()
  # The test can tell it from the sampler of two steps.
  other = sample(mdm.ancestral(2))
  assert statistics.chi_square_p(frequencies(other), planned(plans)) < 1e-6


def test_forwards_that_would_reveal_nothing_are_not_run():
  steps, length = 50, 6
  state = sample(mdm.ancestral(steps), rows=2000, limits=base.Limits(length))
  out = state.out
  for row in range(200):
    assert len(set(out.reveal_step_BxC[row])) == out.nfe_B[row] <= length
  expected = steps * (1 - (1 - 1 / steps) ** length)
  assert abs(out.nfe_B.mean() - expected) < 5 * out.nfe_B.std() / 2000**0.5
  assert (out.query_tokens_B == length * out.nfe_B).all()


@pytest.mark.long
def test_the_number_of_steps_may_be_traced():
  @quick_jit
  def run(steps):
    args = (TABLE, np.zeros((64, 0), np.int32), np.zeros(64, np.int32), jax.random.key(0))
    return base.decode(sampler_of(mdm.ancestral(steps), base.Limits(D)), *args).out

  for steps in (1, 3):
    traced, fixed = run(np.int32(steps)), sample(mdm.ancestral(steps), rows=64).out
    np.testing.assert_array_equal(traced.tokens_BxC, fixed.tokens_BxC)
    np.testing.assert_array_equal(traced.nfe_B, fixed.nfe_B)
  assert (run(np.int32(1)).nfe_B == 1).all()


@pytest.mark.parametrize(
  "unmask",
  [
    mdm.ancestral(4),
    *(
      pytest.param(unmask, marks=pytest.mark.long)
      for unmask in (mdm.first_hitting(2), mdm.by_rule(select.top_k(2)))
    ),
  ],
)
def test_masks_inside_a_prompt_are_filled_and_given_tokens_stay(unmask):
  """Rows of one batch: holes, nothing to do, one token to do, the end of the row."""
  prompts = np.array([[MASK, 1, MASK], [2, 0, 1], [2, MASK, 1], [1, 1, 9], [0, MASK, 9]], np.int32)
  lengths, limits = np.array([3, 3, 3, 2, 2]), np.array([0, 0, 0, 1, 1])

  @quick_jit
  def run(prompts, lengths, limits, key):
    sampler = sampler_of(unmask, base.Limits(1, (), limits))
    return base.decode(sampler, TABLE, prompts, lengths, key).out

  out = jax.device_get(run(prompts, lengths, limits, jax.random.key(1)))
  assert out.done_B.all() and (out.tokens_BxC[:, :D] != MASK).all()
  inside = np.arange(D) < lengths[:, None]
  given = (prompts != MASK) & inside
  np.testing.assert_array_equal(out.tokens_BxC[:, :D][given], prompts[given])
  np.testing.assert_array_equal(out.reveal_step_BxC[:, :D] >= 0, ~given)
  assert out.nfe_B[1] == 0 and (out.nfe_B[[2, 3]] == 1).all() and out.nfe_B[0] in (1, 2)
  np.testing.assert_array_equal(out.length_B, lengths + limits)


def test_a_model_that_scales_by_its_share_of_masks_does_not_count_what_is_behind_the_row():
  """ESM's token dropout looks at all tokens, so scratch behind a shorter row must be padding."""
  lm = models.lm_of(mask_id=12, pad_id=11, token_dropout=True)
  predict = quick_jit(mdm.of_lm(lm))
  params = models.random_params(lm)
  tokens = np.array([[3, 12, 5, 7, 12, 12], [4, 12, 12, 1, 2, 3]], np.int32)
  ends = np.array([4, 6])
  both = predict(params, tokens, ends)
  for behind in (1, 12):
    tokens[0, 4:] = behind
    np.testing.assert_allclose(predict(params, tokens, ends)[0, :4], both[0, :4], atol=1e-5)
  alone = predict(params, tokens[:1, :4], ends[:1])
  np.testing.assert_allclose(alone[0], both[0, :4], atol=1e-4)


def test_settings_out_of_range():
  with pytest.raises(UsageError, match="steps=0"):
    mdm.ancestral(0)
  with pytest.raises(UsageError, match="tokens_per_step=0"):
    mdm.first_hitting(0)
  with pytest.raises(UsageError, match="no mask token"):
    mdm.of_lm(make_lm(models.config()))
