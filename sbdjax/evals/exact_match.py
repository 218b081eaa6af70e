"""Exact match: the share of exercises whose answer a decoder finds.

What counts is the answer (`data.exercises.final`), not the steps to it. A text that was cut off
before its end has no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from scipy import stats

from sbdjax import prompts as prompting
from sbdjax.data.exercises import Exercise, final
from sbdjax.data.tokenizers import Tokenizer
from sbdjax.decode.generate import Result


class Accuracy(NamedTuple):
  """A share with its interval.

  Attributes:
    value: correct / total.
    low, high: Wilson's interval for independent exercises, 95 %.
  """

  value: float
  low: float
  high: float


def accuracy(correct: Sequence[bool]) -> Accuracy:
  """The share of True. Raises ValueError where there is nothing."""
  test = stats.binomtest(sum(correct), len(correct))
  interval = test.proportion_ci(0.95, method="wilson")
  return Accuracy(sum(correct) / len(correct), float(interval.low), float(interval.high))


def encode(tokenizer: Tokenizer, exercises: Sequence[Exercise]) -> list[list[int]]:
  """The prompts as in training: `data.exercise_source` puts bos before them."""
  return [tokenizer.encode(e.prompt, bos=True) for e in exercises]


def responses(tokenizer: Tokenizer, exercises: Sequence[Exercise]) -> list[list[int]]:
  """The right responses as in training, with eos."""
  end = tokenizer.encode("", eos=True)
  found = tokenizer.encode_batch([e.response for e in exercises], continues=True)
  return [[*ids.tolist(), *end] for ids in found]


def is_correct(exercise: Exercise, text: str, ended: bool = True) -> bool:
  """Whether the answer in `text` is that of the exercise.

  Args:
    exercise: what was asked.
    text: what was decoded after its prompt.
    ended: whether it ended by itself; if not, it has no answer.
  """
  return ended and final(text) == exercise.answer


def score(
  tokenizer: Tokenizer, exercises: Sequence[Exercise], results: Sequence[Result]
) -> list[bool]:
  """Whether each exercise was answered right, by any decoder.

  Args:
    tokenizer: of the model.
    exercises: in the order of `results`.
    results: what a `decode.generate.Decoder` gave for the prompts of `encode`.
  """
  return [
    is_correct(exercise, text_of(tokenizer, result), result.finish == "eos")
    for exercise, result in zip(exercises, results, strict=True)
  ]


def text_of(tokenizer: Tokenizer, result: Result) -> str:
  """What was decoded after the prompt."""
  return prompting.text_after(tokenizer, result.prompt_tokens, result.text_tokens)


def by_kind(exercises: Sequence[Exercise], correct: Sequence[bool]) -> dict[str, Any]:
  """kind -> share of right answers."""
  kinds = dict.fromkeys(e.kind for e in exercises)
  found = {}
  for kind in kinds:
    of_kind = [right for e, right in zip(exercises, correct, strict=True) if e.kind == kind]
    found[kind] = sum(of_kind) / len(of_kind)
  return found


def pieces_of(tokenizer: Tokenizer, result: Result) -> list[str]:
  """What each token adds to the text after the prompt; together `text_of`."""
  return prompting.pieces_after(tokenizer, result.prompt_tokens, result.text_tokens)
