"""Drafts looked up in the text: what is found, and verified SBD with them."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax.decode import base
from sbdjax.decode.causal.ar import AR
from sbdjax.decode.causal.drafting import Alternating, FanOut, Fused, NoDrafting
from sbdjax.decode.causal.lookup import NoLookup, TextLookup
from sbdjax.decode.causal.verified_sbd import VerifiedSBD
from sbdjax.decode.tokens import token_sampler
from sbdjax.errors import UsageError
from sbdjax.lm import make_lm
from tests import models
from tests.decode.cases.case import CONFIG
from tests.decode.scripted import scripted_lm
from tests.decode.verified_reference import looked_up
from tests.jit import quick_jit

SCHEDULES = {"alternating": Alternating(), "fused": Fused(), "fan_out": FanOut()}


@pytest.mark.parametrize("r, longest, shortest", [(6, 3, 2), (1, 1, 1), (4, 5, 1), (30, 2, 2)])
def test_what_is_found(r, longest, shortest):
  rng = np.random.default_rng(r)
  rows, capacity = 400, 24
  # Small alphabets have matches everywhere, larger ones seldom.
  tokens = rng.integers(0, rng.integers(1, 9, (rows, 1)), (rows, capacity)).astype(np.int32)
  lengths = rng.integers(1, capacity + 1, rows).astype(np.int32)
  found = jax.jit(TextLookup(r, longest, shortest))(tokens, lengths)
  several = 0
  for row, n, drafts, count in zip(tokens, lengths, found.token_BxR, found.count_B, strict=True):
    expected = looked_up(row[:n].tolist(), r, longest, shortest)
    assert drafts[:count].tolist() == expected
    several += 0 < len(expected)
  assert 50 < several < rows


NET = make_lm(CONFIG)
# Half of the prompts say something twice.
PROMPTS = np.tile(models.tokens(16, 3, vocab_size=11, seed=3), (1, 2))
PROMPTS[8:] = models.tokens(8, 6, vocab_size=11, seed=4)
LENGTHS = np.random.default_rng(3).integers(1, 7, 16).astype(np.int32)
LIMITS = base.Limits(14, (7,))
CASES = [
  pytest.param("alternating", 4, False, 0.0),
  *(
    pytest.param(name, 3, candidates, temperature, marks=pytest.mark.long)
    for name in SCHEDULES
    for candidates in (False, True)
    for temperature in (0.0, 0.8)
  ),
]


@pytest.mark.parametrize("schedule, k, candidates, temperature", CASES)
def test_the_text_is_that_of_ar(schedule, k, candidates, temperature):
  token = token_sampler(temperature)

  def decoded_by(method):
    sampler = method.sampler(NET, LIMITS)
    run = quick_jit(lambda params, key: base.decode(sampler, params, PROMPTS, LENGTHS, key).out)
    for seed in range(6):
      yield run(models.random_params(NET, seed=seed, embedding_scale=0.5), jax.random.key(seed))

  def verified(lookup):
    return decoded_by(VerifiedSBD(k, SCHEDULES[schedule], candidates, lookup, token=token))

  spent = {"ar": 0, "plain": 0, "lookup": 0}
  outs = zip(
    decoded_by(AR(token)), verified(NoLookup()), verified(TextLookup(5, 2, 1)), strict=True
  )
  for want, plain, got in outs:
    np.testing.assert_array_equal(got.length_B, want.length_B)
    for a, b, n in zip(got.tokens_BxC, want.tokens_BxC, want.length_B, strict=True):
      assert a[:n].tolist() == b[:n].tolist()
    assert (got.accepted_B <= got.drafted_B).all()
    for name, out in zip(spent, (want, plain, got), strict=True):
      spent[name] += int(jnp.sum(out.nfe_B))
  assert spent["lookup"] < spent["plain"] < spent["ar"]


def decoded(method, prompt_lengths, max_tokens, right_B):
  """Generation on the scripted model, whose text counts modulo 11, after prompts that do."""
  sampler = method.sampler(scripted_lm(right_B), base.Limits(max_tokens))
  lengths = np.array(prompt_lengths, np.int32)
  prompts = np.tile(np.arange(lengths.max(), dtype=np.int32) % 11, (len(lengths), 1))
  run = quick_jit(lambda key: base.decode(sampler, None, prompts, lengths, key).out)
  out = run(jax.random.key(0))
  for row, n in zip(out.tokens_BxC, lengths, strict=True):
    assert row[n : n + max_tokens].tolist() == [p % 11 for p in range(n, n + max_tokens)]
  return out


@pytest.mark.parametrize(
  "schedule",
  ["fused", *(pytest.param(s, marks=pytest.mark.long) for s in ("alternating", "fan_out"))],
)
def test_forwards_and_tokens_are_counted(schedule):
  """k = 4, r = 5: looked up drafts are all accepted, and the masked half's are never better."""
  method = VerifiedSBD(4, SCHEDULES[schedule], lookup=TextLookup(5))
  out = decoded(method, [14], 18, [True])
  # c, the branch and a block after c, which the branch leaves behind.
  assert (out.nfe_B, out.query_tokens_B) == (3, 3 * (1 + 5 + 4))
  assert (out.drafted_B, out.accepted_B) == (15, 15)


def test_drafts_beyond_the_end_of_a_text_do_not_count_as_accepted():
  """The third forward accepts five, and the limit has room for four of them."""
  out = decoded(VerifiedSBD(4, SCHEDULES["fused"], lookup=TextLookup(5)), [14], 16, [True])
  assert (out.nfe_B, out.drafted_B, out.accepted_B) == (3, 15, 14)


@pytest.mark.parametrize(
  "schedule, right",
  [
    ("alternating", True),
    *(
      pytest.param(name, right, marks=pytest.mark.long)
      for name, right in itertools.product(SCHEDULES, (True, False))
      if (name, right) != ("alternating", True)
    ),
  ],
)
def test_rows_that_find_something_leave_the_others_alone(schedule, right):
  """One row is told 14 tokens of a loop, the other 3: it has nothing to look up for long."""
  run = lambda lookup, *lengths: decoded(
    VerifiedSBD(4, SCHEDULES[schedule], lookup=lookup), lengths, 9, [right] * len(lengths)
  )
  mixed = run(TextLookup(2), 3, 14)
  bare, alone = run(NoLookup(), 3), run(TextLookup(2), 14)
  for name in ("nfe_B", "query_tokens_B", "drafted_B", "accepted_B"):
    assert getattr(mixed, name)[0] == getattr(bare, name)[0], name
    assert getattr(mixed, name)[1] == getattr(alone, name)[0], name


def test_drafts_of_the_winning_chain_are_shown_on_the_canvas():
  method = VerifiedSBD(3, Alternating(), lookup=TextLookup(4))
  sampler = method.sampler(scripted_lm([True, True]), base.Limits(9))
  prompts = np.tile(np.arange(14, dtype=np.int32) % 11, (2, 1))
  state = sampler.init(None, prompts, np.array([14, 3]), jax.random.key(0))
  np.testing.assert_array_equal(method.last_drafts(state), np.full((2, 6), -1))
  step, shown = quick_jit(sampler.step), []
  for _ in range(2):
    assert method.canvas(state).size == 6
    state = step(None, state)
    shown.append(method.last_drafts(state).tolist())
  assert shown[0] == [[3, 4, 5, 6, -1, -1], [-1] * 6]
  assert shown[1] == [[8, 9, 10, 0, -1, -1], [4, 5, -1, -1, -1, -1]]


def test_settings_are_checked():
  with pytest.raises(UsageError, match="lookup_tokens=0 must be at least 1"):
    TextLookup(0)
  with pytest.raises(UsageError, match="shortest_match=4 must be in 1..longest_match=3"):
    TextLookup(shortest_match=4)
  with pytest.raises(UsageError, match="shortest_match=0 must"):
    TextLookup(shortest_match=0)


def test_a_model_without_a_mask_token_looks_up():
  bare = make_lm(dataclasses.replace(CONFIG, mask_id=None))
  params = models.random_params(bare, seed=2, embedding_scale=0.5)
  method = VerifiedSBD(drafting=NoDrafting(), lookup=TextLookup(4, 2, 1))
  run = lambda m: quick_jit(
    lambda params, key: base.decode(m.sampler(bare, LIMITS), params, PROMPTS, LENGTHS, key).out
  )(params, jax.random.key(0))
  want, got = run(AR()), run(method)
  for a, b, n in zip(got.tokens_BxC, want.tokens_BxC, want.length_B, strict=True):
    assert a[:n].tolist() == b[:n].tolist()
  assert jnp.sum(got.nfe_B) < jnp.sum(want.nfe_B)
  with pytest.raises(UsageError, match="mask"):
    VerifiedSBD(lookup=TextLookup()).sampler(bare, LIMITS)


@pytest.mark.parametrize("more", [{}, {"lookup": TextLookup(), "candidates": True}])
def test_without_drafting_something_is_looked_up(more):
  with pytest.raises(UsageError, match="drafting=none"):
    VerifiedSBD(drafting=NoDrafting(), **more)
