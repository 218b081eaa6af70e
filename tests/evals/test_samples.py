"""Measured samples: what a line says, and that nothing is measured twice."""

import json
import math

import jax
import numpy as np
import pytest

from sbdjax.data.text8_tokenizer import Text8Tokenizer
from sbdjax.decode.any_order.windows import Cosine, Linear
from sbdjax.decode.generate import Decoder
from sbdjax.errors import UsageError
from sbdjax.evals import samples
from sbdjax.interop.pretrained import Pretrained
from sbdjax.interop.settings import GenerationDefaults
from sbdjax.nn.sigma import HeadConfig
from sbdjax.sigma_lm import make_sigma_lm
from tests import models

MASK = 27
SIGMA = make_sigma_lm(
  models.config(
    vocab_size=28, mask_id=MASK, num_layers=1, d_model=8, num_heads=2, num_kv_heads=2, d_ff=8
  ),
  HeadConfig(),
)
MODEL = Pretrained(
  SIGMA,
  models.random_params(SIGMA),
  Text8Tokenizer(mask_id=MASK),
  GenerationDefaults((), MASK, attention="full"),
)
PROMPTS = [[]] * 3
HOW = dict(batch_size=2, seed=5)


def lines_of(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
  """Two settings of either sampler; (the file, rows that were judged)."""
  path, seen = tmp_path_factory.mktemp("samples") / "points.jsonl", []

  def quality(rows):
    seen.append(rows)
    return {"spelling": 0.25, "each": {"length": [len(row) for row in rows]}}

  recorder = samples.Recorder(str(path), {"corpus": "none"})
  recorder.once({"label": "held-out"}, lambda: {"spelling": 0.5})
  rules = samples.self_speculative(6, samples.parse_rules("1:0.3,2:0.3"))
  recorder.sweep("SSMD", MODEL, rules, PROMPTS, quality=quality, **HOW)
  steps = samples.masked_diffusion(MODEL, 6, [2, 6], "linear")
  recorder.sweep("MDM", MODEL, steps, PROMPTS, quality=quality, **HOW)
  return path, seen


def test_a_line_holds_settings_counts_and_quality(recorded):
  path, seen = recorded
  held_out, *lines = lines_of(path)
  assert held_out["spelling"] == 0.5 and "nfe" not in held_out
  assert [x["settings"]["label"] for x in lines] == ["SSMD"] * 2 + ["MDM"] * 2
  assert [x["settings"]["decoder"].get("n_inner") for x in lines] == [1, 2, None, None]
  assert [len(rows) for rows in seen] == [3] * 4
  for line, rows in zip(lines, seen, strict=True):
    assert line["spelling"] == 0.25 and line["settings"]["corpus"] == "none"
    assert all(len(row) == 6 and MASK not in row for row in rows)
    assert 0 < line["nfe"] <= 12 and line["seconds_per_sample"] > 0
    assert len(line["each"]["nfe"]) == len(rows) and line["each"]["length"] == [6] * len(rows)
    assert math.isclose(np.mean(line["each"]["nfe"]), line["nfe"], rel_tol=1e-4)
  for line in lines[:2]:  # one bidirectional and one causal block
    assert math.isclose(line["nfe"], (line["trunk_passes"] + line["causal_passes"]) / 2)
  # Tokens are drafts that were kept, or resampled after a rejection.
  assert all(0 < x["acceptance"] <= 1 and 0 <= x["rejections"] < 6 for x in lines[:2])
  kept = [x["rejections"] * x["acceptance"] / (1 - x["acceptance"]) for x in lines[:2]]
  np.testing.assert_allclose([k + x["rejections"] for k, x in zip(kept, lines, strict=False)], 6)
  assert lines[1]["trunk_passes"] <= lines[0]["trunk_passes"]
  assert lines[2]["nfe"] <= 2 < lines[3]["nfe"] and "acceptance" not in lines[2]


def test_the_numbers_are_those_of_the_decoder(recorded):
  path, seen = recorded
  decoding = samples.self_speculative(6, [(2, Cosine(0.3))])[0]
  decoder = Decoder(SIGMA, decoding.limits(()))
  key = jax.random.key(5)
  results = list(decoder.generate(decoding.method, MODEL.params, PROMPTS, key, 2))
  line = lines_of(path)[2]
  assert [r.tokens for r in results] == seen[1]
  np.testing.assert_allclose(line["nfe"], np.mean([r.nfe for r in results]))
  drafted, accepted = sum(r.drafted for r in results), sum(r.accepted for r in results)
  np.testing.assert_allclose(line["acceptance"], accepted / drafted)


def test_what_is_recorded_is_not_measured_again(recorded):
  path, _ = recorded
  before = path.read_text()

  def never(rows):
    raise AssertionError("measured again")

  again = samples.Recorder(str(path), {"corpus": "none"})
  again.once({"label": "held-out"}, lambda: never(()))
  rules = samples.self_speculative(6, [(2, Cosine(0.3))])
  again.sweep("SSMD", MODEL, rules, PROMPTS, quality=never, **HOW)
  assert path.read_text() == before
  other = MODEL._replace(params=jax.tree.map(lambda x: x + 0.01, MODEL.params))
  with pytest.raises(AssertionError, match="measured again"):
    again.sweep("SSMD", other, rules, PROMPTS, quality=never, **HOW)
  with pytest.raises(AssertionError, match="measured again"):
    samples.Recorder(str(path), {"corpus": "other"}).once({"label": "held-out"}, lambda: never(()))


def test_after_what_is_recorded_the_first_that_runs_warms_up(tmp_path, monkeypatch):
  ran = []

  def measured(model, decoder, decoding, *args, warm_up):
    ran.append((decoding.method.n_inner, warm_up))
    return {}

  monkeypatch.setattr(samples, "measure", measured)
  recorder = samples.Recorder(str(tmp_path / "points.jsonl"), {})
  for rules in ("1:0.3", "1:0.3,2:0.3,3:0.3"):  # loops are numbers of one program
    settings = samples.self_speculative(6, samples.parse_rules(rules))
    recorder.sweep("SSMD", MODEL, settings, PROMPTS, quality=None, **HOW)
  assert ran == [(1, True), (2, True), (3, False)]


def test_rules_are_loops_and_a_window():
  assert samples.parse_rules("2:0.083,1:linear:0.5") == [(2, Cosine(0.083)), (1, Linear(0.5))]


@pytest.mark.parametrize("text", ["1", "1:cubic:2", "x:0.1", "1:linear", "1:linear:1:2", ""])
def test_other_rules_are_refused(text):
  with pytest.raises(UsageError, match="N:DTAU"):
    samples.parse_rules(text)
