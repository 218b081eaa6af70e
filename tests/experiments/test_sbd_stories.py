"""Held-out documents of the self-told corpus, and what the page's tables make of the records."""

import json

import numpy as np

from sbdjax.data import token_file
from sbdjax.evals.judge import Scores
from tests.experiments.test_ssmd import script


def test_openings_are_read_and_not_counted(tmp_path):
  module = script("sbd_stories260k/held_out")
  path = tmp_path / "self.npz"
  told = [[1, 2, 3, 4], [1, 5], [1, 6, 7]]
  token_file.write_tokens(path, told, {"vocab_size": 8}, prompt_lengths=[2, 2, 1])
  corpus, _ = token_file.read_tokens(path)
  assert module.documents(corpus) == ([[1, 2], [1]], [[3, 4], [6, 7]])  # the second has no rest
  scores = Scores(np.array([2.0, 4.0]), np.zeros(2), np.array([2, 2]))
  line = module.line_of("SBD", "runs/x", str(path), scores)
  assert line["settings"] == {"checkpoint": "runs/x", "corpus": "self.npz", "split": "test"}
  assert line["nll"] == 1.5 and json.loads(json.dumps(line["each"])) == {
    "nll": [2.0, 4.0],
    "tokens": [2, 2],
  }


def test_the_drafts_are_compared_on_the_same_prompts():
  module = script("sbd_stories260k/masked_half")
  assert module.same_prompts()
  value, low, high = module.ar_cost()
  assert low < value < high
