"""Tuning on made-up numbers: costs, the search, the choice; and what candidates are."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax.bench import tuning
from sbdjax.bench.timing import Pass, Summary, TimedDecoder
from sbdjax.bench.tuning import Candidate, Cost, Trial
from sbdjax.decode import registry
from sbdjax.decode.base import Limits
from sbdjax.decode.generate import Result
from tests import models

EVERY = tuning.candidates(masked=True, table="asset:smollm2_135m_ngrams.safetensors")


def result(tokens, nfe, query_tokens):
  n = len(tokens)
  return Result([1], tokens, n, nfe, 1, query_tokens, 0, 0, [0] * n, "length", 0.0, 1)


def test_costs_are_medians_of_a_turn_and_interpolated():
  seconds = [(1.0, 2.0, 4.0), (1.5, 2.0, 12.0), (4.0, 16.0, 12.0)]  # x 1.5, 1, 3; x 4, 8, 3
  cost = tuning.cost_of((1, 3, 5), seconds)
  assert cost == Cost((1, 3, 5), (1.0, 1.5, 4.0))
  assert [cost(w) for w in (1, 2, 3, 4, 5, 7)] == [1.0, 1.25, 1.5, 2.75, 4.0, 6.5]
  assert Cost((1, 2, 4), (1.0, 1.3, 1.2))(8) == 1.2  # noise does not make wide forwards free


def test_candidates_build_are_lossless_and_differ():
  methods = [tuning.decoding_of(c.settings, 8) for c in EVERY]
  assert all(tuning.gives_text_of_ar(m.method) for m in methods)
  assert len({json.dumps(m.flat()) for m in methods}) == len(EVERY)
  names = {c.family for c in tuning.candidates(masked=False)}
  assert names == {"jacobi_window", "sbd_verified text none"}
  more = {"sbd_verified", "sbd_verified text", "sbd_verified ngrams none"}
  assert {c.family for c in EVERY} == names | more
  assert max(max(c.widths) for c in EVERY) == tuning.WIDTHS[-1]


@pytest.mark.parametrize(
  ("settings", "same"),
  [
    ({"name": "ar", "temperature": 1.0}, True),
    ({"name": "sbd_verified", "temperature": 1.0}, True),
    ({"name": "sbd_verified", "temperature": 1.0, "verify": "resample"}, False),
    ({"name": "jacobi_multiblock"}, True),
    ({"name": "jacobi", "temperature": 1.0, "verify": "resample"}, False),
    ({"name": "sbd", "gamma": 0.0}, False),
    ({"name": "freedave"}, False),
  ],
)
def test_what_gives_the_text_of_ar(settings, same):
  assert tuning.gives_text_of_ar(tuning.decoding_of(settings, 8).method) == same


def certain(lm):
  """Parameters with which every next token, masked or not, is 5 by far."""
  zero = jax.tree.map(jnp.zeros_like, models.random_params(lm))
  return zero | {
    "embedding": jnp.ones_like(zero["embedding"]),
    "final_norm": {"scale": jnp.ones_like(zero["final_norm"]["scale"])},
    "head": zero["head"].at[5].set(2.0),
  }


@pytest.mark.long
def test_widths_are_those_of_the_forwards_that_are_traced():
  lm, widths = models.lm_of(mask_id=12, tie_embeddings=False), []

  def apply(params, tokens_BxT, **kwargs):
    widths.append(tokens_BxT.shape[1])
    return lm.apply(params, tokens_BxT, **kwargs)

  params, limits = models.random_params(lm), Limits(40)
  prompt = (jnp.ones((1, 4), jnp.int32), jnp.full((1,), 4), jax.random.key(0))
  own = [c for c in EVERY if "lookup_table" not in c.settings]  # the table is of another model
  few = [c for c in own if c.chain == 3 or c.family == "jacobi_window" and c.chain == 4]
  assert any(c.looked_up for c in few)
  for candidate in (*few, max(EVERY, key=lambda c: c.width)):
    method = tuning.decoding_of(candidate.settings, 40).method
    sampler = method.sampler(lm._replace(apply=apply), limits)
    state = jax.eval_shape(sampler.init, params, *prompt)
    widths.clear()
    jax.eval_shape(sampler.step, params, state)
    # A forward with looked-up drafts is a program of its own.
    found = [w + candidate.looked_up for w in candidate.widths] if candidate.looked_up else []
    assert sorted(widths) == sorted([*candidate.widths, *found])


@pytest.mark.parametrize(
  "settings",
  [
    {"name": "sbd_verified", "block_size": 3, "drafting": "alternating"},
    pytest.param(
      {"name": "sbd_verified", "block_size": 3, "drafting": "fan_out", "points": 0},
      marks=pytest.mark.long,
    ),
    {"name": "sbd_verified", "drafting": "none", "lookup": "text", "lookup_tokens": 4},
  ],
  ids=lambda settings: settings["drafting"],
)
def test_the_most_tokens_are_those_of_a_model_whose_drafts_are_all_right(settings):
  (candidate,) = [c for c in EVERY if c.settings == settings]
  lm = models.lm_of(mask_id=12, tie_embeddings=False, max_seq_len=256)
  decoder = TimedDecoder(lm, Limits(180))
  (found,) = tuning.decode(decoder, certain(lm), [[1, 2]], settings, 180).results
  assert found.tokens == [5] * 180
  # The first forwards have nothing to verify, the last one meets the limit.
  assert found.tpf == pytest.approx(candidate.most(), rel=0.1)


def test_the_price_of_looking_up_by_hand():
  cost = Cost((1, 5), (1.0, 2.0))
  x = Candidate({"name": "x"}, (1,), 5, looked_up=4, found_share=0.25)
  assert x.price(cost) == 0.75 * 1.0 + 0.25 * 2.0 and x.width == 2.0


def test_trials_by_hand():
  cost = Cost((1, 10), (1.0, 2.0))
  ar = [result([1, 2, 3, 4], 4, 4), result([5, 6], 2, 2)]
  fast = [result([1, 2, 3, 4], 2, 14), result([5, 6], 1, 10)]
  x = Candidate({"name": "x"}, (8,), 3)
  trial = tuning.trial_of(x, fast, ar, cost)
  assert (trial.tokens_per_forward, trial.width, trial.same_text) == (2.0, 8, True)
  assert trial.expected == pytest.approx(2.0 / (1 + 7 / 9)) and trial.ratio is None
  other = [result([1, 2, 3, 9], 2, 14), result([5, 6], 1, 10)]
  assert not tuning.trial_of(x, other, ar, cost).same_text
  passes = [Pass(fast, 9.0, s) for s in (1.0, 2.0, 4.0)]
  of_ar = [Pass(ar, 0.0, s) for s in (3.0, 3.0, 3.0)]
  timed = tuning.timed(trial, passes, of_ar)
  assert timed.ratio == Summary(1.5, 0.75, 3.0) and timed.tokens_per_second == (3.0, 1.5, 6.0)
  assert timed.same_text and not tuning.timed(trial, [Pass(other, 0, 1.0)], of_ar[:1]).same_text
  # A difference on the few prompts counts, whatever all of them say.
  was = tuning.trial_of(x, other, ar, cost)
  assert not tuning.timed(was, passes, of_ar).same_text


def trial(name, ratio, same=True, expected=1.0):
  summary = None if ratio is None else Summary(ratio, ratio, ratio)
  return Trial({"name": name}, 1.0, 1.0, 1.0, expected, same, summary, summary)


@pytest.mark.parametrize(
  ("trials", "best"),
  [
    ([trial("ar", 1.0), trial("a", 0.9), trial("b", 0.99)], None),
    ([trial("ar", 1.0), trial("a", 1.2), trial("b", 1.3), trial("c", 1.1)], "b"),
    ([trial("ar", 1.0), trial("a", 1.2), trial("b", 9.9, same=False)], "a"),
    ([trial("ar", 1.0), trial("b", 9.9, same=False)], None),
    ([trial("ar", 1.0), trial("a", None, expected=5.0)], None),
  ],
)
def test_the_fastest_with_the_text_of_ar_wins(trials, best):
  found = tuning.choose(trials)
  assert (found and found.settings["name"]) == best


def test_finalists_are_those_of_which_most_is_expected():
  trials = [trial(n, None, n != "c", e) for n, e in zip("abcd", (1.0, 3.0, 9.0, 2.0), strict=True)]
  assert [t.settings["name"] for t in tuning.finalists(trials, 2)] == ["b", "d"]
  assert [t.settings["name"] for t in tuning.finalists(trials, 9)] == ["b", "d", "a"]


def world(seed):
  """A cost, and what each candidate would be found to do, all made up.

  Acceptance falls with the place of a draft and, where not every outcome has a block, with luck.
  """
  rng = np.random.default_rng(seed)
  share = rng.uniform(0.2, 0.98)
  slope = 10 ** rng.uniform(-4, 0)
  cost = Cost((1, 1000), (1.0, 1.0 + 999 * slope))

  def run(c):
    added = 1 + sum(share ** (j * (1.5 - 0.5 * c.settings.get("candidates", 0))) for j in range(1, c.chain))  # fmt: skip
    whole = (
      c.settings.get("points") == 0 or c.forwards == 2 or c.settings["name"] == "jacobi_window"
    )
    whole |= c.settings.get("drafting") == "none"
    added = 1 + (added - 1) * (1 if whole else rng.uniform(0.6, 1))
    tokens = (added + c.forwards - 1) / c.forwards
    price = c.price(cost)
    return Trial(c.settings, tokens, c.width, price, tokens / price, True)

  return cost, {json.dumps(c.settings): run(c) for c in EVERY}


@pytest.mark.parametrize("seed", range(30))
def test_the_search_leaves_out_nothing_better(seed):
  cost, found = world(seed)
  run = lambda candidate: found[json.dumps(candidate.settings)]
  tried = list(tuning.search(EVERY, cost, run, len(EVERY)))
  every = [t.expected for t in found.values()]
  assert max([1.0, *(t.expected for t in tried)]) == pytest.approx(max(1.0, *every))
  assert len({json.dumps(t.settings) for t in tried}) == len(tried)


def test_the_search_tries_scouts_first_then_the_promising_and_not_too_many():
  made = lambda name, width, chain: Candidate({"name": name, "width": width}, (width,), chain)
  every = [made("a", 2, 2), made("a", 9, 4), made("a", 4, 4), made("a", 3, 3), made("b", 5, 2)]
  cost, log = Cost((1, 2), (1.0, 1.1)), []

  def run(c, factor=1.0, same=True):
    log.append((c.family, c.width))
    tokens = {9: 2.5, 5: 1.5, 4: 1.4, 3: 1.3, 2: 1.2}[c.width]
    return Trial(c.settings, tokens, c.width, 1.0, factor * tokens / cost(c.width), same)

  # The scout adds 2.5 tokens: nobody of width 4 is above 2.5 / 1.3, of 3 above 2.5 / 1.2.
  assert len(list(tuning.search(every, cost, run, 9))) == 5
  assert log == [("a", 9), ("b", 5), ("a", 3), ("a", 4), ("a", 2)]
  log.clear()
  assert len(list(tuning.search(every, cost, run, 3))) == len(log) == 3
  log.clear()
  list(tuning.search(every, cost, lambda c: run(c, factor=1.5), 9))  # 2.08 found at once
  assert log == [("a", 9), ("b", 5), ("a", 3)]
  log.clear()
  list(tuning.search(every, cost, lambda c: run(c, factor=9.0, same=False), 9))
  assert len(log) == 5  # what has another text is no reason to stop


def test_forwards_of_all_widths_take_turns(monkeypatch):
  lm = models.lm_of(max_seq_len=256)
  widths, log = [], []

  def forward(lm, params, width, rows, context):
    assert (rows, context) == (1, 7)
    widths.append(width)
    return lambda: width

  def seconds(run, repeats, lasting):
    log.append(run())
    return Summary(run() / 10, 0.0, 0.0)

  monkeypatch.setattr(tuning.parallel, "cached_forward", forward)
  monkeypatch.setattr(tuning, "seconds_a_call", seconds)
  prepared = lambda method, params, batch: registry.name_of(method)
  found = tuning.time_forwards(lm, prepared, None, 7, 3)
  assert tuple(widths) == tuning.WIDTHS and found == [(w / 10,) * 3 for w in tuning.WIDTHS]
  turns = [tuple(log[i : i + len(widths)]) for i in range(0, len(log), len(widths))]
  assert all(sorted(turn) == widths for turn in turns) and len(set(turns)) == 3  # and a warm-up


def test_a_race_goes_in_turns_over_all_prompts(monkeypatch):
  log = itertools.count()
  decode = lambda decoder, params, prompts, settings, limit: (settings, len(prompts), next(log))
  monkeypatch.setattr(tuning, "decode", decode)
  found = tuning.race(None, None, [[1], [2]], ["a", "b"], 5, 2)
  assert found == [(("a", 2, 2), ("a", 2, 5)), (("b", 2, 3), ("b", 2, 4))]
