"""An adapter drafts, the model verifies: a random one changes drafts, and no token of the text."""

import functools

import jax
import numpy as np
import pytest

from sbdjax.decode import base
from sbdjax.decode.causal.ar import AR
from sbdjax.decode.causal.drafting import Alternating, FanOut, Fused
from sbdjax.decode.causal.lookup import NoLookup, TextLookup
from sbdjax.decode.causal.sbd import SBD
from sbdjax.decode.causal.verified_sbd import VerifiedSBD
from sbdjax.decode.tokens import Categorical, Greedy
from sbdjax.lm import make_lm
from sbdjax.nn import adapter
from sbdjax.nn.adapter import AdapterConfig
from tests import models
from tests.decode.cases.case import CONFIG
from tests.jit import quick_jit

BASE = make_lm(CONFIG)
LM = models.lm_of(vocab_size=12, mask_id=11, tie_embeddings=False, adapter=AdapterConfig(2))
PROMPTS = models.tokens(8, 5, vocab_size=11, seed=3)
LENGTHS = np.random.default_rng(3).integers(1, 6, 8).astype(np.int32)
SCHEDULES = {"alternating": Alternating(), "fused": Fused(), "fan_out": FanOut()}
LIMITS = base.Limits(14, (7,))


def params_of(seed):
  """A soft base, some of whose drafts are right, and an adapter as large as its weights."""
  return models.random_params(LM, seed=seed, embedding_scale=0.5)


@functools.cache
def runner(lm, method):
  sampler = method.sampler(lm, LIMITS)
  return quick_jit(lambda params, key: base.decode(sampler, params, PROMPTS, LENGTHS, key).out)


def texts(out):
  return [row[:n].tolist() for row, n in zip(out.tokens_BxC, out.length_B, strict=True)]


LOOKUP = TextLookup(4, 2, 1)
CASES = [
  ("alternating", 4, False, 0.0, NoLookup()),
  pytest.param("fan_out", 3, True, 0.9, LOOKUP, marks=pytest.mark.long),
  *(
    pytest.param(name, 3, candidates, 0.0, lookup, marks=pytest.mark.long)
    for name in SCHEDULES
    for candidates in (False, True)
    for lookup in (NoLookup(), LOOKUP)
  ),
]


@pytest.mark.parametrize("schedule, k, candidates, temperature, lookup", CASES)
def test_verified_text_is_that_of_the_base(schedule, k, candidates, temperature, lookup):
  token = Categorical(temperature) if temperature else Greedy()
  method = VerifiedSBD(k, SCHEDULES[schedule], candidates, lookup, token=token)
  ours, bare, ar = runner(LM, method), runner(BASE, method), runner(BASE, AR(token))
  accepted = []
  for seed in range(4):
    params, key = params_of(seed), jax.random.key(seed)
    clean = adapter.split(params)[0]
    want, got, of_base = ar(clean, key), ours(params, key), bare(clean, key)
    assert texts(got) == texts(want) == texts(of_base)
    accepted.append((got.accepted_B.tolist(), of_base.accepted_B.tolist()))
  # The adapter drafts otherwise than the base (row by row: sums can agree), and some drafts are right.
  assert all(a != b for a, b in accepted) and all(sum(a) > 0 for a, _ in accepted)


def test_autoregressive_text_is_that_of_the_base_and_blocks_are_not():
  changed = 0
  for seed in range(3):
    params, key = params_of(seed), jax.random.key(0)
    clean = adapter.split(params)[0]
    assert texts(runner(LM, AR())(params, key)) == texts(runner(BASE, AR())(clean, key))
    method = SBD(4)
    changed += texts(runner(LM, method)(params, key)) != texts(runner(BASE, method)(clean, key))
  assert changed == 3


@pytest.mark.long
def test_prepared_parameters_decode_the_same():
  params, key = params_of(1), jax.random.key(1)
  run = runner(LM, VerifiedSBD(4, Alternating()))
  found, expected = run(LM.prepare(params, 2), key), run(params, key)
  assert texts(found) == texts(expected)
  np.testing.assert_array_equal(found.accepted_B, expected.accepted_B)
