"""A prompt that begins with what was run before: its new tokens alone are run, with the same text."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax import cache as kv_cache
from sbdjax.decode import (
  AR,
  MDM,
  SBD,
  Alternating,
  EBEntropy,
  FanOut,
  JacobiMultiblock,
  JacobiWindow,
  Limits,
  NGrams,
  VerifiedSBD,
  sizes,
)
from sbdjax.decode.base import decode
from sbdjax.decode.causal.ar import prefill
from sbdjax.decode.generate import results_of
from sbdjax.decode.kept import Kept, KeptText, common, text_of
from sbdjax.decode.programs import shared
from sbdjax.decode.stream import Streamer
from sbdjax.errors import UsageError
from sbdjax.interop import load_pretrained
from tests import models
from tests.jit import quick_jit

MODEL = load_pretrained("stories260K-sbd")
LM, PARAMS, KEY = MODEL.lm, MODEL.params, jax.random.key(0)
# Two turns, as a chat template would put them, of about 20 tokens each.
FIRST = MODEL.tokenizer.encode("Once upon a time there was a girl named Lily. She liked to sing.")
THEN = MODEL.tokenizer.encode(" Tom said: what did her mom give to the cat?")[1:]
WIDTH, LIMIT = 128, 24
METHODS = {
  "ar": AR(),
  "sbd": SBD(8, EBEntropy(0.8)),
  "alternating": VerifiedSBD(8, Alternating()),
  "fan_out": VerifiedSBD(4, FanOut(2), candidates=True),
  "window": JacobiWindow(8),
  "multiblock": JacobiMultiblock(4, num_blocks=3, pool=NGrams(8, n_gram=3, num_candidates=2)),
}
SHARED = shared(LM, keep=64)
long = functools.partial(pytest.param, marks=pytest.mark.long)


def streamer(method, prompt, kept=None, width=WIDTH, lm=LM, limits=None, using=SHARED):
  limits = limits or Limits(LIMIT)
  return Streamer(lm, limits, method, PARAMS, [prompt], using, width, kept)


def last(stream, row=0):
  """The finished row, but for its seconds."""
  *_, frame = stream.frames(row, KEY)
  return dataclasses.replace(frame.result, seconds=0.0)


def padded(prompt):
  """int32 [1, P] and the length [1]."""
  row = np.pad(np.array([prompt], np.int32), ((0, 0), (0, WIDTH - len(prompt))))
  return row, np.array([len(prompt)], np.int32)


def poisoned(text, length):
  """`text` with rubbish in every slot from `length` on."""
  cache = text.cache
  bad = jnp.arange(cache.capacity)[:, None] >= length
  rubbish = lambda x: jnp.where(bad, 1e20, x)
  return KeptText(text.tokens, cache.replace(k=rubbish(cache.k), v=rubbish(cache.v)))


_PREFILL = quick_jit(lambda *args: prefill(LM, *args, WIDTH))


def clean_cache(tokens_BxT, length_B):
  return _PREFILL(PARAMS, tokens_BxT, length_B)


def check_clean(text):
  """The cache holds what the causal forward of its tokens stores."""
  count = len(text.tokens)
  clean = clean_cache(*padded(text.tokens))
  for found, want in ((text.cache.k, clean.k), (text.cache.v, clean.v)):
    np.testing.assert_allclose(found[..., :count, :], want[..., :count, :], atol=2e-4)


class Whole:
  """`method` in one program for every prompt, and in one for what is kept."""

  def __init__(self, method, limits):
    sampler = method.sampler(LM, limits)
    self._run = quick_jit(lambda *args: decode(sampler, *args))
    self._slots = LM.init_cache(1, method.cache_slots(WIDTH, limits)).capacity

  def __call__(self, prompt, text=None):
    """The finished row, the text it leaves, and how many tokens were taken over."""
    kept = text and text.beginning([prompt], WIDTH, self._slots)
    args = (*padded(prompt), KEY, *([kept] if kept else []))
    state = self._run(PARAMS, *args)
    (result,) = results_of(state.out, 1, 0.0, 1)
    return result, text_of(state), int(kept.cache.length_B[0]) if kept else 0


@functools.cache
def whole(name, eos_ids=()):
  return Whole(METHODS[name], Limits(LIMIT, eos_ids))


@pytest.mark.parametrize(
  "name", ["fan_out"] + [long(n) for n in ("ar", "sbd", "alternating", "window", "multiblock")]
)
def test_a_further_turn_is_what_it_is_from_scratch(name):
  run = whole(name)
  first, text, kept = run(FIRST)
  known = FIRST + first.tokens
  # All but the block or the token that a forward has yet to store.
  assert text.tokens == known[: len(text.tokens)] and not kept
  assert len(known) - len(text.tokens) <= (16 if name == "sbd" else 1)
  check_clean(text)

  prompt = known + THEN
  found, after, kept = run(prompt, poisoned(text, len(text.tokens)))
  assert kept == len(text.tokens)
  assert found == run(prompt)[0] and len(found.tokens) == LIMIT and found.prefill_nfe == 1
  check_clean(after)

  # A token in the middle is another: nothing is read from there on.
  middle = len(FIRST) // 2
  other = [*known[:middle], THEN[0], *known[middle + 1 :]]
  assert THEN[0] != known[middle]
  want = run(other)[0]
  assert run(other, poisoned(after, middle))[::2] == (want, middle)
  spoiled = run(other, poisoned(after, middle - 1))
  assert spoiled[0].tokens != want.tokens  # so that rubbish would have been seen


def test_only_new_tokens_are_run():
  widths, text = [], KeptText(FIRST, LM.init_cache(1, WIDTH))

  def apply(params, tokens_BxT, **kwargs):
    widths.append(tokens_BxT.shape[1])
    return LM.apply(params, tokens_BxT, **kwargs)

  init = AR().sampler(LM._replace(apply=apply), Limits(LIMIT)).init
  for kept in (None, text.beginning([FIRST + THEN], WIDTH, WIDTH + LIMIT)):
    jax.eval_shape(init, PARAMS, *padded(FIRST + THEN), KEY, kept)
  assert widths == [WIDTH, sizes.rest(len(THEN))] == [128, 64]


def test_turns_share_programs():
  using = shared(LM)
  before = streamer(AR(), FIRST, using=using)
  assert before.text is None and before.kept_tokens == 0
  known = FIRST + last(before).tokens
  text, before = before.text, len(using.programs)
  assert list(text.tokens) == known[:-1]
  for rest in (1, 9, 40):
    prompt = (known + 2 * THEN)[: len(text.tokens) + rest]
    after = streamer(AR(), prompt, text, using=using)
    assert after.kept_tokens == len(text.tokens) and len(using.programs) == before + 1
    assert last(after) == last(streamer(AR(), prompt, using=using))


@pytest.mark.long
@pytest.mark.parametrize("name", ["sbd", "multiblock", "ar"])
def test_a_cache_grows_and_shrinks(name):
  method = METHODS[name]
  before = streamer(method, FIRST)
  prompt = FIRST + last(before).tokens + THEN * 5
  assert len(prompt) > WIDTH
  wide = streamer(method, prompt, before.text, width=256)
  assert wide.kept_tokens == len(before.text.tokens)
  assert last(wide) == last(streamer(method, prompt, width=256))
  assert wide.text.cache.capacity >= before.text.cache.capacity + 128
  short = streamer(method, FIRST + THEN, wide.text)
  assert short.kept_tokens == common(FIRST + THEN, prompt)
  assert last(short) == last(streamer(method, FIRST + THEN))


@pytest.mark.long
def test_what_one_method_left_another_goes_on_from():
  before = streamer(METHODS["sbd"], FIRST)
  prompt = FIRST + last(before).tokens + THEN
  after = streamer(AR(), prompt, before.text)
  assert after.kept_tokens == len(before.text.tokens)
  assert last(after) == last(streamer(AR(), prompt))


def test_tokens_after_an_eos_are_not_kept():
  """A forward may accept and store drafts that the text ends before."""
  free = whole("fan_out")(FIRST)[0]
  assert free.reveal_step[:5] == [0, 1, 1, 1, 1]  # or take another prompt
  result, text, _ = whole("fan_out", (free.tokens[1],))(FIRST)
  assert result.finish == "eos" and result.tokens == free.tokens[:2]
  assert text.cache.length_B[0] > len(text.tokens)
  assert text.tokens == FIRST + result.tokens
  check_clean(text)


def test_prompts_that_share_a_beginning_take_it_over():
  text = KeptText(FIRST, clean_cache(*padded(FIRST)))
  prompts = [FIRST + THEN, FIRST[:12] + THEN]
  both = Streamer(LM, Limits(LIMIT), AR(), PARAMS, prompts, SHARED, WIDTH, text)
  assert both.kept_tokens == 12
  for i, prompt in enumerate(prompts):
    assert last(both, i) == last(streamer(AR(), prompt))


def test_nothing_is_kept_where_nothing_is_gained():
  text = KeptText(FIRST, LM.init_cache(1, WIDTH))
  length = lambda prompt, width=WIDTH: (
    (kept := text.beginning([prompt], width, WIDTH)) and int(kept.cache.length_B[0])
  )
  assert length(FIRST + THEN) == len(FIRST) and length(FIRST[:9] + THEN) == 9
  assert length([FIRST[0] + 1, *FIRST[1:]]) is None
  assert length(FIRST + THEN, width=64) is None  # 64 columns either way
  assert length(FIRST) == len(FIRST) - 1  # one token has to be run
  assert length(FIRST[:20]) == 19


def test_methods_without_such_a_cache_run_everything():
  text = KeptText(FIRST, LM.init_cache(1, WIDTH))
  lm = models.lm_of(mask_id=12)
  args = Limits(4), MDM(attention="full"), models.random_params(lm), [[1, 2, 3]]
  stream = Streamer(lm, *args, kept=text)
  assert stream.kept_tokens == 0 and len(last(stream).tokens) == 4


@pytest.mark.long
def test_rows_may_have_beginnings_of_any_length():
  """At the level of samplers: a row each, in whole batches."""
  lengths, kept = np.array([20, 12], np.int32), np.array([17, 5], np.int32)
  prompts = np.concatenate([padded(FIRST[:n])[0] for n in lengths])
  sampler, cache = AR().sampler(LM, Limits(6)), clean_cache(prompts, kept)
  jitted = quick_jit(lambda *args: decode(sampler, *args).out)
  run = functools.partial(jitted, PARAMS, prompts, lengths, KEY)
  slots = LM.init_cache(1, AR().cache_slots(WIDTH, Limits(6))).capacity
  found = run(Kept(kv_cache.resized(cache, slots), columns=24))
  want = run()
  np.testing.assert_array_equal(found.tokens_BxC, want.tokens_BxC)


def test_a_cache_with_too_few_slots_is_refused():
  init, kept = AR().sampler(LM, Limits(6)).init, Kept(LM.init_cache(1, WIDTH), columns=24)
  with pytest.raises(UsageError, match="128 slots where 134 are needed"):
    jax.eval_shape(init, PARAMS, *padded(FIRST), KEY, kept)


def test_common_is_the_longest_beginning():
  assert [common(a, b) for a, b in (([], [1]), ([1, 2], [1, 3, 2]), ([1, 2], [1, 2, 3]))] == [
    0,
    1,
    2,
  ]
