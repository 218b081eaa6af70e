"""Exercises: right answers, disjoint splits, and what a run reads of them."""

import collections
import datetime
import re

import numpy as np
import pytest

from sbdjax.cli.common import load_config
from sbdjax.data.config import SPLITS, DataConfig
from sbdjax.data.exercise_source import Exercises
from sbdjax.data.exercises import KINDS, exercises, final, split_of
from sbdjax.data.sources import get, load_corpus, register
from sbdjax.data.tokenizers import load_tokenizer
from sbdjax.errors import UsageError
from sbdjax.settings import to_dataclass


def solve(exercise):
  """The answer, from the prompt alone and by other means."""
  numbers = [int(n) for n in re.findall(r"\d+", exercise.prompt)]
  listed = exercise.prompt.rpartition(":")[2].strip(" .?").split()
  if exercise.kind == "add":
    return str(sum(numbers))
  if exercise.kind == "subtract":
    return str(max(numbers) - min(numbers))
  if exercise.kind == "copy":
    return " ".join(listed)
  if exercise.kind == "sort":
    return " ".join(sorted(listed))
  month, day = re.search(r"([A-Z][a-z]+) (\d+)", exercise.prompt.replace("It is ", "")).groups()
  rest = exercise.prompt.replace(f"{month} {day}", "")
  start = datetime.datetime.strptime(f"{month} {day} 2023", "%B %d %Y")
  end = start + datetime.timedelta(days=int(re.search(r"\d+", rest).group()))
  return f"{end:%B} {end.day}"


@pytest.mark.parametrize("split", SPLITS)
def test_answers_are_right(split):
  for exercise in exercises(split, 1000, seed=3):
    assert exercise.answer == solve(exercise), exercise
    assert exercise.answer == final(exercise.response)


def test_steps_are_right_and_lead_to_the_answer():
  for exercise in exercises("train", 600, kinds=("add", "subtract", "date")):
    found = []
    for step in exercise.response.rpartition(":")[0].split(","):
      left, right = step.split("=")
      assert eval(left) == int(right), exercise  # numbers and signs of our own making
      found.append(int(right))
    if exercise.kind == "date":
      assert exercise.answer.endswith(f" {found[-1]}")
    else:
      ones, tens = found
      assert 0 <= ones and 10 * tens + ones % 10 == int(exercise.answer), exercise


def test_splits_share_neither_words_nor_problems():
  drawn = {split: exercises(split, 3000) for split in SPLITS}
  # The steps of these kinds say what the operands were, whatever the words.
  kinds = ("add", "subtract", "date")
  of_kind = lambda split, value: {value(e) for e in drawn[split] if e.kind in kinds}
  for value in (lambda e: (e.kind, e.template), lambda e: (e.kind, e.response)):
    train, validation, test = (of_kind(split, value) for split in SPLITS)
    assert not train & validation and not train & test and not validation & test
  for kind in KINDS.values():
    templates = [t for split in SPLITS for t in kind.templates[split]]
    assert len(set(templates)) == len(templates) and set(kind.templates) == set(SPLITS)


def test_a_problem_has_one_split():
  rng = np.random.default_rng(0)
  counts = collections.Counter(split_of("add", KINDS["add"].draw(rng)) for _ in range(4000))
  assert abs(counts["test"] / 4000 - 0.1) < 0.03 and abs(counts["train"] / 4000 - 0.8) < 0.03


def test_the_seed_decides_and_more_go_on():
  few, many = exercises("test", 20, seed=1), exercises("test", 40, seed=1)
  assert many[:20] == few and exercises("test", 20, seed=2) != few
  assert {e.kind for e in few} == set(KINDS)
  with pytest.raises(UsageError, match="did you mean 'sort'"):
    exercises("test", 1, kinds=("sorts",))


def test_final():
  assert final(" 8 + 7 = 15, 3 + 4 + 1 = 8: 85.") == "85" == final("85")
  assert final(" cat dog.") == "cat dog" and final("") == ""


def documents_of(corpus):
  return np.split(corpus.tokens, corpus.starts[1:])


def test_the_source_gives_questions_and_learns_answers():
  tokenizer = load_tokenizer("tok512")
  data = to_dataclass(DataConfig, {"source": "exercises", "count": 30, "held_out": 10}, "data")
  assert isinstance(data, Exercises) and data.source == "exercises"
  for split, count in (("train", 30), ("test", 10)):
    corpus = load_corpus(data, split, tokenizer)
    drawn = exercises(split, count)
    for e, ids, given in zip(drawn, documents_of(corpus), corpus.prompt_lengths, strict=True):
      assert ids[0] == tokenizer.bos_id and ids[-1] == tokenizer.eos_id
      assert ids[:given].tolist() == tokenizer.encode(e.prompt, bos=True)
      assert tokenizer.decode(ids[1:-1].tolist()).strip() == e.prompt + e.response


def test_whole_blocks():
  tokenizer = load_tokenizer("tok512")
  plain = load_corpus(Exercises(count=20), "train", tokenizer)
  whole = load_corpus(Exercises(count=20, multiple=8), "train", tokenizer)
  assert not (whole.lengths % 8).any()
  assert (whole.prompt_lengths == plain.prompt_lengths).all()
  for a, b in zip(documents_of(plain), documents_of(whole), strict=True):
    assert (b[: len(a)] == a).all() and (b[len(a) :] == tokenizer.eos_id).all()


def test_the_name_is_taken_and_fields_are_checked():
  assert get("exercises") is Exercises
  with pytest.raises(UsageError, match="taken"):
    register("exercises", type("Other", (Exercises,), {}))
  with pytest.raises(UsageError, match="data.multiple=0"):
    Exercises(multiple=0)
  with pytest.raises(UsageError, match="did you mean 'exercises'"):
    to_dataclass(DataConfig, {"source": "exercise"}, "data")


def test_flags_reach_its_fields():
  config = load_config(
    "preset:stories_exercises", {"data.count": "7"}, lambda c: {"data": DataConfig}
  )
  assert config.data.count == 7
