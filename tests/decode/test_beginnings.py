"""What prompts of several calls begin with is run once, and no answer depends on it."""

import jax
import numpy as np
import pytest

from sbdjax import decode
from sbdjax.decode.base import Limits
from sbdjax.decode.beginnings import Beginnings
from sbdjax.decode.generate import Decoder
from sbdjax.decode.method import Method
from sbdjax.decode.tokens import Categorical
from tests import models

LM = models.lm_of(mask_id=12, max_seq_len=256)
PARAMS = models.random_params(LM, embedding_scale=2.0)
RNG = np.random.default_rng(0)


def words(count):
  return RNG.integers(0, 12, count).tolist()


EXAMPLES = words(100)
PROMPTS = [EXAMPLES + words(n) for n in (20, 7, 13, 2)]


def decoded(method, prompts, numbers=None, kept=None, batch_size=2):
  decoder = Decoder(LM, Limits(12))
  key = jax.random.key(3)
  found = decoder.generate(method, PARAMS, prompts, key, batch_size, None, numbers, kept)
  return [(r.tokens, r.nfe, r.query_tokens, r.prefill_nfe) for r in found]


@pytest.mark.parametrize(
  "method",
  [
    decode.AR(Categorical(1.5)),
    pytest.param(decode.SBD(block_size=4), marks=pytest.mark.long),
    decode.VerifiedSBD(block_size=4),
    pytest.param(decode.Jacobi(block_size=4), marks=pytest.mark.long),
  ],
  ids=lambda method: type(method).__name__,
)
def test_answers_are_those_of_whole_prompts(method):
  begins = Beginnings(LM, PARAMS)
  text = begins.of(method, PROMPTS)
  assert begins.tokens_run == len(text.tokens) >= 100
  assert decoded(method, PROMPTS, kept=text) == decoded(method, PROMPTS)
  # The text counts: answers after other tokens in its cache are others.
  wrong = Beginnings(LM, PARAMS).of(method, [EXAMPLES[::-1] + p[100:] for p in PROMPTS])
  lied = type(text)(text.tokens, wrong.cache)
  assert decoded(method, PROMPTS, kept=lied) != decoded(method, PROMPTS)


def test_a_beginning_is_run_once_over_several_calls():
  begins, ar = Beginnings(LM, PARAMS), decode.AR()
  first = begins.of(ar, PROMPTS[:2])
  assert begins.of(ar, PROMPTS[2:]) is first and begins.of(ar, PROMPTS[:1]) is first
  assert begins.tokens_run == len(first.tokens)
  # Another conversation, with more in common: from its second call on.
  start = PROMPTS[0] + words(70)
  assert begins.of(ar, [[*start, t] for t in (1, 2)]) is first
  more = begins.of(ar, [[*start, t] for t in (3, 4)])
  assert more is not first and more.tokens == start
  assert begins.tokens_run == len(first.tokens) + len(more.tokens)
  assert begins.of(ar, [words(80), words(90)]) is None


def test_single_prompts_share_from_the_second_on():
  begins, ar = Beginnings(LM, PARAMS), decode.AR()
  assert begins.of(ar, PROMPTS[:1]) is None
  assert begins.of(ar, PROMPTS[1:2]).tokens[:100] == EXAMPLES
  assert begins.of(ar, PROMPTS[2:3]) is begins.of(ar, PROMPTS[3:])


def test_what_is_short_or_alone_or_not_cached_is_run_with_its_prompt():
  ar = decode.AR()
  assert Beginnings(LM, PARAMS).of(ar, [p[50:] for p in PROMPTS]) is None
  assert Beginnings(LM, PARAMS).of(ar, [EXAMPLES, EXAMPLES]).tokens == EXAMPLES[:-1]
  assert Beginnings(LM, PARAMS).of(decode.Static(), PROMPTS) is None
  assert isinstance(decode.Static(), Method)
