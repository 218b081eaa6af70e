"""The timed driver gives what the plain one gives, and its numbers add up."""

import jax
import numpy as np
import pytest

from sbdjax.bench import timing
from sbdjax.bench.decoding import time_sampler
from sbdjax.bench.per_prompt import PromptDecoder
from sbdjax.decode.any_order.mdm import MDM
from sbdjax.decode.base import Limits
from sbdjax.decode.causal.sbd import SBD
from sbdjax.decode.generate import Decoder
from sbdjax.decode.rules import EBEntropy
from sbdjax.decode.tokens import Categorical
from tests import models

LM = models.lm_of(mask_id=12)
PARAMS = models.random_params(LM)
PROMPTS = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 1], [2]]
LIMITS = Limits(9, (3,))


def sbd_of(gamma):
  return SBD(4, EBEntropy(gamma), Categorical(1.0))


@pytest.fixture(scope="module")
def decoder():
  return timing.TimedDecoder(LM, LIMITS)


def run(decoder, gamma=0.1):
  """Five prompts in batches of two: the last one is filled up."""
  return decoder.run(sbd_of(gamma), PARAMS, PROMPTS, jax.random.key(1), 2)


@pytest.mark.long
def test_same_results_as_the_plain_driver(decoder):
  plain = Decoder(LM, LIMITS)
  expected = plain.generate(sbd_of(0.1), PARAMS, PROMPTS, jax.random.key(1), batch_size=3)
  for a, b in zip(run(decoder).results, expected, strict=True):
    assert (a.prompt_tokens, a.tokens, a.nfe, a.reveal_step, a.finish, a.prefill_nfe) == (
      b.prompt_tokens, b.tokens, b.nfe, b.reveal_step, b.finish, b.prefill_nfe
    )  # fmt: skip


def test_numbers_change_without_compiling(decoder):
  nfe, compiled = [], []
  for gamma in (0.0, 5.0):
    nfe.append(sum(r.nfe for r in run(decoder, gamma).results))
    compiled.append(decoder.compile_seconds)
  assert nfe[1] < nfe[0]
  assert compiled[1] == compiled[0] > 0


@pytest.mark.long
def test_methods_that_fill_in_any_order_take_empty_prompts(decoder):
  method = MDM(attention="full")
  done = decoder.run(method, PARAMS, [[], [1, 2]], jax.random.key(1), batch_size=0)
  assert [len(r.tokens) for r in done.results] == [9, 9] and done.decode_seconds > 0


def test_speed_is_tokens_by_decoding_time(decoder):
  done = run(decoder)
  tokens = sum(len(r.tokens) for r in done.results)
  assert done.tokens == tokens
  assert done.tokens_per_second == pytest.approx(tokens / done.decode_seconds)
  # A batch's wall-clock is its two parts; three batches of at most two rows.
  whole = sum({r.seconds for r in done.results})
  assert whole == pytest.approx(done.prefill_seconds + done.decode_seconds)


def test_a_row_of_the_benchmark():
  endless = timing.TimedDecoder(LM, Limits(9))
  row, tokens = time_sampler("sbd", endless, sbd_of(0.1), PARAMS, PROMPTS, repeats=5)
  assert [len(t) for t in tokens] == [9] * 5 and row.tokens == 45 and row.batch_size == 5
  assert row.prompt_length == 4
  assert row.low <= row.tokens_per_second <= row.high and row.repeats == 5
  assert row.tokens_per_forward == pytest.approx(9 / row.nfe)


@pytest.mark.parametrize("by_prompt", [False, True])
def test_no_program_is_dropped_between_its_turns(decoder, by_prompt):
  """However many points are timed: the first execution after compiling is slow."""
  if by_prompt:
    decoder = PromptDecoder(LM, PARAMS, LIMITS, width=8)
  made = []
  for _ in range(2):
    for n in range(60):
      decoder._programs.find((np.zeros(n),), lambda n=n: made.append(n), kind="of this test")
  assert made == list(range(60))


def test_summary():
  assert timing.summarise([3.0, 1.0, 10.0]) == (3.0, 1.0, 10.0)
  assert np.isclose(timing.summarise([1.0, 2.0]).median, 1.5)


@pytest.mark.parametrize("lasting, calls", [(0.0, 1), (1.0, 4), (1e9, timing._MAX_CALLS)])
def test_a_measurement_lasts_as_long_as_it_should(monkeypatch, lasting, calls):
  """Every call takes 0.25 s of a clock that stands still otherwise."""
  now, waited = [0.0], []
  monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

  def run():
    now[0] += 0.25
    return now[0]

  found = timing.seconds_a_call(run, 3, lasting=lasting, wait=waited.append)
  assert found == (0.25, 0.25, 0.25)
  assert len(waited) == (4 if lasting == 0 else 5)  # warm-up, a call to see how long one takes
  assert now[0] == pytest.approx(0.25 * (waited.__len__() - 3 + 3 * calls))
