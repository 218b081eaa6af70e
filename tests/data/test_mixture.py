"""Mixtures: shares, order, resuming, processes."""

import dataclasses

import numpy as np
import pytest

from sbdjax.data.config import DataConfig
from sbdjax.data.pipeline import make_eval, make_pipeline
from sbdjax.errors import CheckpointError, UsageError
from sbdjax.share import Share

WORDS = {"a": 40, "b": 12, "c": 400}
WEIGHTS = {"a": 3.0, "b": 2.0, "c": 1.0}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
  folder = tmp_path_factory.mktemp("mixture")
  for letter, count in WORDS.items():
    (folder / f"{letter}.txt").write_text("|".join([letter * 8] * count))
  return DataConfig(
    source="mixture",
    mixture=tuple((str(folder / f"{letter}.txt"), w) for letter, w in WEIGHTS.items()),
    tokenizer="text8", separator="|", add_bos=False, seq_len=8, packing="pad",
  )  # fmt: skip


def letters(batch):
  return [chr(ord("a") + int(t) - 1) for t in batch["tokens"][:, 0]]


def test_every_stretch_has_the_shares_of_the_weights(config):
  batches = make_pipeline(config, seed=1, batch_size=6)
  drawn = [letter for _ in range(100) for letter in letters(next(batches))]
  total = sum(WEIGHTS.values())
  for start in range(0, 500, 50):
    window = drawn[start : start + 60]
    for letter, weight in WEIGHTS.items():
      assert abs(window.count(letter) - 60 * weight / total) <= 2
  assert "40 documents" not in batches.corpus.origin and "36 documents" in batches.corpus.origin


def test_a_part_is_seen_whole_before_it_begins_again(config):
  batches = make_pipeline(config, seed=1, batch_size=6)
  seen = [next(batches) for _ in range(30)]
  ids = np.concatenate([b["example_id"] for b in seen])
  assert ids.tolist() == list(range(180))
  rows_of_b = sum(letter == "b" for b in seen for letter in letters(b))
  assert rows_of_b == 60  # of 10 training documents, six times each


def test_processes_and_resuming_do_not_change_the_stream(config):
  whole = make_pipeline(config, seed=3, batch_size=4)
  parts = [make_pipeline(config, seed=3, batch_size=4, share=Share(i, 2)) for i in range(2)]
  for step in range(6):
    expected = next(whole)
    for name in expected:
      halves = np.concatenate([next(p)[name] for p in parts]) if name == "tokens" else None
      if halves is not None:
        np.testing.assert_array_equal(halves, expected[name])
    if step == 2:
      state = whole.get_state()
      whole = make_pipeline(config, seed=3, batch_size=4)
      whole.set_state(state)


def test_another_weight_does_not_resume(config):
  state = make_pipeline(config, seed=3, batch_size=4).get_state()
  mixture = tuple((path, 1.0) for path, _ in config.mixture)
  other = make_pipeline(dataclasses.replace(config, mixture=mixture), seed=3, batch_size=4)
  with pytest.raises(CheckpointError, match="weights"):
    other.set_state(state)


def test_an_evaluation_reads_every_row_once_in_proportion(config):
  batches = list(make_eval(config, "validation", batch_size=4))
  rows = [
    letter for b in batches for letter, w in zip(letters(b), b["weights"], strict=True) if w.any()
  ]
  assert sorted(rows) == ["a"] * 2 + ["b"] + ["c"] * 20
  assert "b" in rows[8:16]  # in the middle


@pytest.mark.parametrize(
  ("fields", "words"),
  [
    (dict(source="mixture"), "needs both"),
    (dict(mixture=(("a.txt", 1.0),)), "needs both"),
    (dict(source="mixture", mixture=(("a.txt", 0.0),)), "positive weight"),
  ],
)
def test_settings(fields, words):
  with pytest.raises(UsageError, match=words):
    DataConfig(**fields)
