"""Exercises that a small model can learn: arithmetic, copying, sorting and dates, with one right answer.

Every exercise is drawn from a seed. A template is a way to ask; those of the three splits are
disjoint, and so are the problems: a problem (a kind with its operands) belongs to the split that a
checksum of it says. A test thus asks what was never asked, in words that were never used for it.

Responses work the answer out where that takes steps ("8 + 7 = 15, 3 + 4 + 1 = 8: 85."), and what
counts is the answer: see `final`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sbdjax.data.config import SPLITS, check_choice
from sbdjax.errors import UsageError


class Exercise(NamedTuple):
  """One question with its answer.

  Attributes:
    kind: key of `KINDS`.
    template: what it was asked by.
    prompt: the question.
    response: the answer with the steps to it; it starts with a space, as words do.
    answer: what `final` finds in the response.
  """

  kind: str
  template: str
  prompt: str
  response: str
  answer: str


class Problem(NamedTuple):
  """What is asked, whatever the words.

  Attributes:
    operands: values of the template's fields.
    response: the answer with its steps.
  """

  operands: Mapping[str, object]
  response: str


class Kind(NamedTuple):
  """A kind of exercise.

  Attributes:
    draw: makes a problem.
    templates: split -> ways to ask.
  """

  draw: Callable[[np.random.Generator], Problem]
  templates: Mapping[str, Sequence[str]]


_WORDS = (
  "cat dog ball sun tree bird fish mom dad car box hat bed day boy girl toy red big happy sad play run"
).split()
# Fields of templates that change nothing.
_WHO = ("Tom", "Lily", "Ben", "Mom", "Sam", "Anna")
_WHAT = ("cars", "toys", "balls", "cats", "hats", "birds")
_MONTHS = {
  "January": 31,
  "February": 28,
  "March": 31,
  "April": 30,
  "May": 31,
  "June": 30,
  "July": 31,
  "August": 31,
  "September": 30,
  "October": 31,
  "November": 30,
  "December": 31,
}


def _add(rng: np.random.Generator) -> Problem:
  """Two numbers of two digits, added digit by digit, ones first."""
  a, b = (int(x) for x in rng.integers(10, 100, 2))
  ones = a % 10 + b % 10
  tens = [a // 10, b // 10, *([1] if ones > 9 else [])]
  steps = f"{a % 10} + {b % 10} = {ones}, {' + '.join(map(str, tens))} = {sum(tens)}"
  return Problem({"a": a, "b": b}, f" {steps}: {a + b}.")


def _subtract(rng: np.random.Generator) -> Problem:
  """A number of two digits from a larger one, ones first, ten borrowed where it takes one."""
  b, a = sorted(int(x) for x in rng.choice(np.arange(10, 100), 2, replace=False))
  borrowed = int(a % 10 < b % 10)
  ones, tens = a % 10 + 10 * borrowed, a // 10 - borrowed
  steps = f"{ones} - {b % 10} = {ones - b % 10}, {tens} - {b // 10} = {tens - b // 10}"
  return Problem({"a": a, "b": b}, f" {steps}: {a - b}.")


def _copy(rng: np.random.Generator) -> Problem:
  """Four to eight words, as they are."""
  words = " ".join(rng.choice(_WORDS, int(rng.integers(4, 9)), replace=False))
  return Problem({"items": words}, f" {words}.")


def _sort(rng: np.random.Generator) -> Problem:
  """Four to eight different digits, ascending."""
  digits = rng.choice(10, int(rng.integers(4, 9)), replace=False)
  written = lambda values: " ".join(str(v) for v in values)
  return Problem({"items": written(digits)}, f" {written(np.sort(digits))}.")


def _date(rng: np.random.Generator) -> Problem:
  """Some days after a day of a year of 365 days."""
  months = list(_MONTHS)
  at = int(rng.integers(len(months)))
  size = _MONTHS[months[at]]
  day, later = int(rng.integers(1, size + 1)), int(rng.integers(1, 10))
  end, reached = day + later, months[at]
  steps = f"{day} + {later} = {end}"
  if end > size:
    steps, reached = f"{steps}, {end} - {size} = {end - size}", months[(at + 1) % 12]
    end -= size
  return Problem({"n": later, "date": f"{months[at]} {day}"}, f" {steps}: {reached} {end}.")


KINDS = {
  "add": Kind(
    _add,
    {
      "train": (
        "Add {a} and {b}.",
        "What is {a} + {b}?",
        "{a} plus {b}?",
        "The sum of {a} and {b}?",
        "{who} has {a} {what} and gets {b} more. How many {what}?",
        "{who} had {a} {what}. Then {who} got {b}. How many now?",
        "Now {a} + {b}.",
      ),
      "validation": ("What do you get if you add {a} and {b}?",),
      "test": ("How much is {a} + {b}?", "{who} has {a} {what}, then gets {b}. How many {what}?"),
    },
  ),
  "subtract": Kind(
    _subtract,
    {
      "train": (
        "Take {b} from {a}.",
        "What is {a} - {b}?",
        "{a} minus {b}?",
        "{a} take away {b}?",
        "{who} has {a} {what} and loses {b}. How many {what}?",
        "{who} had {a} {what}. Then {who} lost {b}. How many now?",
        "Now {a} - {b}.",
      ),
      "validation": ("What do you get if you take {b} from {a}?",),
      "test": ("How much is {a} - {b}?", "{who} has {a} {what}, then loses {b}. How many {what}?"),
    },
  ),
  "copy": Kind(
    _copy,
    {
      "train": (
        "Copy: {items}.",
        "Copy this: {items}.",
        "Say this again: {items}.",
        "Repeat: {items}.",
        "The same words: {items}.",
        "Write it again: {items}.",
      ),
      "validation": ("Copy the words: {items}.",),
      "test": ("Say the same again: {items}.", "Copy these: {items}."),
    },
  ),
  "sort": Kind(
    _sort,
    {
      "train": (
        "Sort: {items}.",
        "Sort this: {items}.",
        "In order: {items}.",
        "Put in order: {items}.",
        "From small to big: {items}.",
        "Sort it, small to big: {items}.",
      ),
      "validation": ("Sort the numbers: {items}.",),
      "test": ("Put these in order: {items}.", "Sort from small to big: {items}."),
    },
  ),
  "date": Kind(
    _date,
    {
      "train": (
        "It is {date}. What day is it {n} days later?",
        "What is {n} days after {date}?",
        "{n} days after {date}?",
        "{date}, then {n} days more?",
        "Today is {date}. And {n} days later?",
        "{date} plus {n} days?",
      ),
      "validation": ("Which day is {n} days after {date}?",),
      "test": ("It is {date}. And {n} days after that?", "What day is {n} days after {date}?"),
    },
  ),
}
_HELD_OUT = 10  # of so many problems, one is for tests and one for validation


def split_of(kind: str, problem: Problem) -> str:
  """The split that a problem belongs to, whatever words ask it."""
  values = " ".join(f"{name}={value}" for name, value in sorted(problem.operands.items()))
  bucket = zlib.crc32(f"{kind} {values}".encode()) % _HELD_OUT
  return {0: "test", 1: "validation"}.get(bucket, "train")


def exercises(
  split: str, count: int, seed: int = 0, kinds: Sequence[str] = tuple(KINDS)
) -> list[Exercise]:
  """Draws exercises of a split, kinds in turns.

  Args:
    split: one of `data.config.SPLITS`.
    count: how many; the first of a larger number are the same.
    seed: another seed, other exercises.
    kinds: keys of `KINDS`.

  Raises:
    UsageError: an unknown split or kind, no kinds, or a negative number.
  """
  check_choice("split", split, SPLITS)
  for kind in kinds:
    check_choice("data.kinds", kind, KINDS)
  if not kinds or count < 0 or seed < 0:
    raise UsageError(f"{count} exercises of kinds {tuple(kinds)}, seed {seed}: give numbers >= 0")
  rng = np.random.default_rng((seed, SPLITS.index(split)))
  return [_draw(kinds[i % len(kinds)], split, rng) for i in range(count)]


def _draw(kind: str, split: str, rng: np.random.Generator) -> Exercise:
  problem = KINDS[kind].draw(rng)
  while split_of(kind, problem) != split:
    problem = KINDS[kind].draw(rng)
  template = str(rng.choice(KINDS[kind].templates[split]))
  words = {"who": rng.choice(_WHO), "what": rng.choice(_WHAT)}
  prompt = template.format(**problem.operands, **words)
  return Exercise(kind, template, prompt, problem.response, final(problem.response))


def final(text: str) -> str:
  """The answer in a response: what follows its last colon, without spaces around and the full stop."""
  return text.rpartition(":")[2].strip().removesuffix(".").strip()
