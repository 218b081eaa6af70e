"""Generative NLL: which tokens are scored, against a float64 network."""

import dataclasses
import math

import numpy as np
import pytest

from sbdjax.data.text8_tokenizer import Text8Tokenizer
from sbdjax.errors import UsageError
from sbdjax.evals.generative import generative_nll
from sbdjax.evals.judge import Judge
from tests import models
from tests.reference import network

LM = models.lm_of(vocab_size=29, mask_id=28)
PARAMS = models.random_params(LM)
JUDGE = Judge(LM, PARAMS, batch_size=2)
TEXTS = ["a cat sat", "zz", "the mat " * 9]


@dataclasses.dataclass
class WithBos(Text8Tokenizer):
  bos_id = 27


def reference(tokens):
  """NLL of the tokens from the second on."""
  visible = np.tri(len(tokens), dtype=bool)
  logits = network.forward(LM.config, PARAMS, tokens, np.arange(len(tokens)), visible)[:, :28]
  log_p = network.log_softmax(logits)
  return -log_p[np.arange(len(tokens) - 1), tokens[1:]].sum()


def test_without_a_bos_the_first_token_is_given():
  tokenizer = Text8Tokenizer()
  got = generative_nll(JUDGE, tokenizer, TEXTS)
  rows = [np.array(tokenizer.encode(text))[:64] for text in TEXTS]
  assert got.tokens == got.characters == 8 + 1 + 63 and got.truncated == 1
  assert got.nll == pytest.approx(sum(map(reference, rows)) / got.tokens, rel=1e-5)
  np.testing.assert_allclose(got.each.nll, list(map(reference, rows)), rtol=1e-5)
  assert got.each.tokens.tolist() == [8, 1, 63]
  assert got.perplexity == pytest.approx(math.exp(got.nll))
  assert got.bits_per_character == pytest.approx(got.nll / math.log(2))


def test_with_a_bos_every_token_is_scored():
  tokenizer = WithBos()
  got = generative_nll(JUDGE, tokenizer, TEXTS)
  rows = [np.array([27, *tokenizer.encode(text)])[:64] for text in TEXTS]
  assert got.tokens == 9 + 2 + 63
  assert got.nll == pytest.approx(sum(map(reference, rows)) / got.tokens, rel=1e-5)


def test_a_text_of_one_token_leaves_nothing_to_score():
  with pytest.raises(UsageError, match="text 1 has too few tokens"):
    generative_nll(JUDGE, Text8Tokenizer(), ["ab", "a"])
