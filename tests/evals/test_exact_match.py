"""Exact match."""

import pytest

from sbdjax.data.exercise_source import Exercises
from sbdjax.data.exercises import exercises
from sbdjax.data.tokenizers import load_tokenizer
from sbdjax.decode.generate import Result
from sbdjax.evals import exact_match

TOKENIZER = load_tokenizer("tok512")


def result(prompt, text, finish="eos"):
  tokens = TOKENIZER.encode_batch([text], continues=True)[0].tolist()
  return Result(
    prompt, [*tokens, 2], len(tokens) + 1, 1, 1, 1, 0, 0, [0] * (len(tokens) + 1), finish, 0.0, 1
  )


def test_what_counts_is_the_answer():
  asked = exercises("test", 10)
  prompts = exact_match.encode(TOKENIZER, asked)
  right = [result(p, e.response) for p, e in zip(prompts, asked, strict=True)]
  assert exact_match.score(TOKENIZER, asked, right) == [True] * 10
  # Other steps, the same answer.
  other = [result(p, f" so: {e.answer}") for p, e in zip(prompts, asked, strict=True)]
  assert all(exact_match.score(TOKENIZER, asked, other))
  # The same steps, another answer; and a text that was cut.
  wrong = [result(p, e.response.rstrip(".") + "9.") for p, e in zip(prompts, asked, strict=True)]
  assert not any(exact_match.score(TOKENIZER, asked, wrong))
  cut = [r.__class__(**{**r.__dict__, "finish": "length"}) for r in right]
  assert not any(exact_match.score(TOKENIZER, asked, cut))


def test_responses_are_what_training_learns():
  asked = exercises("train", 5)
  corpus = Exercises(count=5).load("train", TOKENIZER)
  for ids, start, length, given in zip(
    exact_match.responses(TOKENIZER, asked),
    corpus.starts,
    corpus.lengths,
    corpus.prompt_lengths,
    strict=True,
  ):
    assert corpus.tokens[start + given : start + length].tolist() == ids


def test_shares():
  asked = exercises("test", 10)  # each of five kinds twice
  correct = [e.kind == "add" or i < 5 for i, e in enumerate(asked)]
  assert exact_match.by_kind(asked, correct) == {
    "add": 1.0, "subtract": 0.5, "copy": 0.5, "sort": 0.5, "date": 0.5
  }  # fmt: skip
  found = exact_match.accuracy([True] * 8 + [False] * 2)
  # Wilson 1927, worked out by hand: (p + z2/2n -+ z sqrt(p q / n + z2 / 4 n2)) / (1 + z2 / n).
  assert found == pytest.approx((0.8, 0.4902, 0.9433), abs=1e-4)
  assert exact_match.accuracy([True]).high == 1.0
