"""Lists of prompts in, plain results out: the same whatever the batch size."""

import dataclasses

import jax
import numpy as np
import pytest

from sbdjax.decode import base, sampling, sbd, select
from sbdjax.decode.generate import Decoder, Result, check_context, pad_prompts
from sbdjax.errors import UsageError
from sbdjax.lm import make_lm
from tests import models
from tests.decode.registry import CONFIG, EOS

PROMPTS = [[1, 2, 5], [4], [9, 9, 8, 1, 2, 4], [6, 10], [2, 2, 2]]
LM = make_lm(CONFIG)
PARAMS = models.random_params(LM, seed=5)


def build(gamma):
  return sbd.make_sampler(
    LM, base.Limits(9, EOS), sampling.categorical(0.7), select.eb_entropy(gamma), 4
  )


@pytest.fixture(scope="module")
def decoder():
  return Decoder(build)


def run(decoder, gamma=0.5, **kwargs):
  return list(decoder.generate(PARAMS, PROMPTS, jax.random.key(0), gamma, **kwargs))


def without_timing(results):
  return [dataclasses.replace(r, seconds=0.0, batch_size=0) for r in results]


@pytest.mark.long
def test_results_do_not_depend_on_the_batch_size(decoder):
  """Row i has its own noise whatever it is decoded with; five in twos leaves one over."""
  whole = run(decoder)
  assert [r.prompt_tokens for r in whole] == PROMPTS
  for size in (2, 99):
    assert without_timing(run(decoder, batch_size=size)) == without_timing(whole)
  assert {r.batch_size for r in whole} == {5}
  assert {r.batch_size for r in run(decoder, batch_size=2)} == {2}


def test_results_are_plain_and_consistent(decoder):
  results = run(decoder)
  for r in results:
    assert all(type(t) is int for t in r.tokens + r.reveal_step + r.prompt_tokens)
    assert type(r.nfe) is int and r.prefill_nfe == 1 and r.seconds > 0
    assert len(r.tokens) == len(r.reveal_step) and max(r.reveal_step) == r.nfe - 1
    assert (r.finish == "eos") == (r.tokens[-1] in EOS)
    assert r.finish == "eos" or len(r.tokens) == 9
    assert r.tpf == len(r.tokens) / r.nfe
  assert {r.finish for r in results} == {"eos", "length"}


def test_another_gamma_is_another_result_but_no_other_compilation(decoder):
  run(decoder)
  before = decoder.compile_seconds
  slow, fast = run(decoder, gamma=0.0), run(decoder, gamma=5.0)
  assert decoder.compile_seconds == before > 0
  assert sum(r.nfe for r in fast) < sum(r.nfe for r in slow)


def test_pad_prompts():
  padded, lengths = pad_prompts([[1, 2], [3], [4, 5, 6]])
  np.testing.assert_array_equal(padded, [[1, 2, 0], [3, 0, 0], [4, 5, 6]])
  np.testing.assert_array_equal(lengths, [2, 1, 3])
  assert padded.dtype == lengths.dtype == np.int32
  assert pad_prompts([[1]], width=5)[0].shape == (1, 5)


@pytest.mark.parametrize("prompts", [[], [[1], []]])
def test_missing_prompts_are_refused(prompts):
  with pytest.raises(UsageError) as error:
    pad_prompts(prompts)
  assert "prompt" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
  ("prompts", "words"),
  [
    ([[1], [1] * 7], "prompt 1 has 7 tokens"),
    ([[1, 12]], "token 12"),
    ([[1], [-1]], "prompt 1 holds token -1"),
  ],
)
def test_prompts_the_model_cannot_take_are_refused(prompts, words):
  with pytest.raises(UsageError, match=words) as error:
    check_context(prompts, max_tokens=4, max_seq_len=10, vocab_size=12)
  assert "\n" not in str(error.value)
  check_context([[1] * 6, [11]], max_tokens=4, max_seq_len=10, vocab_size=12)


def test_tpf_is_tokens_a_forward():
  result = Result([1], [2, 3, 4], 3, 2, 1, 2, 0, 0, [0, 0, 1], "length", 0.1, 1)
  assert result.tpf == 1.5
