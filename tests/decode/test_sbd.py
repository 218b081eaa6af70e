"""What a Set Block Decoding forward costs, and the sampler's own settings."""

import jax
import numpy as np
import pytest

from sbdjax.decode import ar, base, sampling, sbd, select
from sbdjax.errors import UsageError
from sbdjax.lm import make_lm
from tests import models
from tests.decode.registry import CONFIG

K, MAX_TOKENS = 4, 12
PROMPT = np.array([[1, 2, 5, 9, 4]], np.int32)


def counting_lm():
  """The tiny network, and the list it appends the width of every forward to when it *runs*."""
  net, widths = make_lm(CONFIG), []

  def apply(params, tokens_BxT, **kwargs):
    jax.debug.callback(lambda width=tokens_BxT.shape[1]: widths.append(width))
    return net.apply(params, tokens_BxT, **kwargs)

  return net._replace(apply=apply), widths


def widths_of(build, prompts=PROMPT, lengths=None):
  """(widths of the prefill, widths of each step, final state) of a run without EOS."""
  lm, widths = counting_lm()
  params = models.random_params(make_lm(CONFIG), seed=5)
  sampler = build(lm, base.Limits(MAX_TOKENS))
  lengths = np.full(len(prompts), prompts.shape[1], np.int32) if lengths is None else lengths
  state = jax.jit(sampler.init)(params, prompts, lengths, jax.random.key(0))
  jax.effects_barrier()
  prefill, steps, step = widths.copy(), [], jax.jit(sampler.step)
  while not state.out.done_B.all():
    widths.clear()
    state = step(params, state)
    jax.effects_barrier()
    steps.append(widths.copy())
  return prefill, steps, state


def test_ar_runs_one_token_a_forward():
  prefill, steps, state = widths_of(
    lambda lm, limits: ar.make_sampler(lm, limits, sampling.greedy())
  )
  assert prefill == [5] and steps == [[1]] * MAX_TOKENS
  assert int(state.out.nfe_B[0]) == MAX_TOKENS


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_a_block_costs_one_wide_forward_and_narrow_ones(gamma):
  """Equation 16: time(2k) + (l - 1) time(k); the first block follows the prefill, so it has none."""
  prefill, steps, state = widths_of(
    lambda lm, limits: sbd.make_sampler(lm, limits, sampling.greedy(), select.eb_entropy(gamma), K)
  )
  reveal = np.asarray(state.out.reveal_step_BxC[0, 5 : 5 + MAX_TOKENS]).reshape(-1, K)
  forwards = np.diff([-1, *reveal.max(axis=1)])  # l of each block
  expected = [K] * forwards[0]
  for count in forwards[1:]:
    expected += [2 * K] + [K] * (count - 1)
  assert prefill == [5]
  assert [w for (w,) in steps] == expected
  assert forwards.sum() == int(state.out.nfe_B[0])
  assert (forwards == K).all() if gamma == 0 else (forwards < K).any()


def test_gamma_zero_is_one_token_a_forward():
  _, steps, state = widths_of(
    lambda lm, limits: sbd.make_sampler(lm, limits, sampling.greedy(), select.eb_entropy(0.0), K)
  )
  assert int(state.out.nfe_B[0]) == len(steps) == MAX_TOKENS
  assert sorted(state.out.reveal_step_BxC[0, 5 : 5 + MAX_TOKENS].tolist()) == list(
    range(MAX_TOKENS)
  )


def test_a_finished_row_that_waits_for_its_commit_widens_no_forward():
  """Row 1 ends with a finished block; from then on only row 0's blocks cost a wide forward."""
  lm, widths = counting_lm()
  params = models.random_params(make_lm(CONFIG), seed=5)
  limits = base.Limits(MAX_TOKENS, max_tokens_B=np.array([MAX_TOKENS, K]))
  sampler = sbd.make_sampler(lm, limits, sampling.greedy(), select.eb_entropy(0.0), K)
  prompts = np.repeat(PROMPT, 2, axis=0)
  state = jax.jit(sampler.init)(params, prompts, np.full(2, 5, np.int32), jax.random.key(0))
  jax.effects_barrier()
  widths.clear()
  step = jax.jit(sampler.step)
  while not state.out.done_B.all():
    state = step(params, state)
    jax.effects_barrier()
  assert widths == [K] * K + ([2 * K] + [K] * (K - 1)) * 2
  assert state.out.nfe_B.tolist() == [MAX_TOKENS, K]


def test_senseless_settings_are_refused_in_one_line():
  lm, limits, rule = make_lm(CONFIG), base.Limits(4), select.eb_entropy(0.1)
  with pytest.raises(UsageError, match="block_size=0"):
    sbd.make_sampler(lm, limits, sampling.greedy(), rule, 0)
  plain = models.lm_of(mask_id=None)
  with pytest.raises(UsageError, match="no mask token"):
    sbd.make_sampler(plain, limits, sampling.greedy(), rule, 4)
  with pytest.raises(UsageError, match="max_tokens=0"):
    base.Limits(0)
