"""Jacobi decoding puts out what AR decoding does, and does the forwards it says."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax import cache as kv_cache
from sbdjax.decode import (
  ar,
  base,
  jacobi,
  jacobi_drafts,
  jacobi_multiblock,
  jacobi_recycling,
  sampling,
  verify,
)
from sbdjax.errors import UsageError
from sbdjax.lm import LM, suppress
from tests import models
from tests.decode import jacobi_reference
from tests.decode.registry import CONFIG, MASK
from tests.decode.test_lossless import choose_at
from tests.jit import quick_jit
from tests.reference import network, statistics

NET = models.lm_of(vocab_size=12, mask_id=MASK, tie_embeddings=False)
EXACT = verify.exact_match(sampling.greedy())
FROM_TEXT = jacobi_drafts.from_text()
FROM_VOCABULARY = jacobi_drafts.from_vocabulary(CONFIG.vocab_size, MASK)

# --- forwards, on a model that says token p % 11 at position p ------------------------------------


def counting_lm():
  def apply(params, tokens_BxT, *, positions_BxT, mask, cache=None, slots_BxT=None):
    del params, mask, slots_BxT, tokens_BxT
    return positions_BxT[..., None] + 1, cache

  def logits(params, hidden):
    del params
    said = 10.0 * jax.nn.one_hot(hidden[..., 0] % 11, CONFIG.vocab_size)
    return suppress(said, CONFIG.mask_id)

  def init_cache(batch, capacity):
    return kv_cache.init(1, batch, capacity, 1, 2, "float32")

  return LM(CONFIG, lambda key: None, apply, logits, init_cache)


@pytest.mark.parametrize(
  "drafting, right, wrong",
  [
    # Guesses all right: n tokens a forward. All wrong: one, then the predictions are right.
    (jacobi_drafts.blocks, (3, 3 * 4, 3 * 3), (6, 3 * (4 + 3), 3 * (3 + 2))),
    # All wrong: one, then all n, which leaves no prediction to draft with.
    (jacobi_drafts.window, (3, 3 * 4, 3 * 3), (6, 6 * 4, 6 * 3)),
    # Wrong: after its first token a block spawns another, the next forward fills the one and gives
    # the other right drafts, and one more fills that: 1, 3, 4, then again 1, 3.
    (
      lambda n, fill: jacobi_multiblock.multiblock(n, fill, 2, 0.25),
      (3, 3 * 4, 3 * 3),
      (5, 4 + 7 + 4 + 7 + 4, 3 + 2 + 3 + 2 + 3),
    ),
  ],
  ids=["blocks", "window", "multiblock"],
)
def test_forwards_and_query_tokens(drafting, right, wrong):
  """12 tokens with n = 4; row 0 is given the right drafts, row 1 wrong ones."""
  n, length, prompt = 4, 12, np.array([[1, 2, 3]] * 2, np.int32)
  truth = (3 + np.arange(32)) % 11
  fill = jacobi_drafts.given(np.stack([truth, (truth + 5) % 11]))
  sampler = jacobi.make_sampler(counting_lm(), base.Limits(length), EXACT, drafting(n, fill))
  run = quick_jit(lambda key: base.decode(sampler, None, prompt, np.array([3, 3]), key).out)
  out = jax.device_get(run(jax.random.key(0)))
  assert out.tokens_BxC[:, 3 : 3 + length].tolist() == [truth[:length].tolist()] * 2
  for row, expected in enumerate((right, wrong)):
    found = (out.nfe_B[row], out.query_tokens_B[row], out.drafted_B[row])
    assert tuple(int(x) for x in found) == expected
  assert (out.length_B == 3 + length).all()


# --- the same tokens as AR ------------------------------------------------------------------------

ROWS, WIDTH, MAX_TOKENS, EOS = 32, 6, 14, (3, 7)


@dataclasses.dataclass(frozen=True)
class Setting:
  """One compiled decoder. `pool`: None, (size, n, candidates) of n-grams, or (size,) of points."""

  n: int
  blocks: int = 1
  ratio: float = 1.0
  eager: bool = False
  window: bool = False
  pool: tuple | None = None
  mode: str = "batch"
  fill: str = "text"

  def drafting(self):
    fill = {"text": FROM_TEXT, "vocabulary": FROM_VOCABULARY}[self.fill]
    if self.window:
      return jacobi_drafts.window(self.n, fill)
    if self.blocks == 1 and not self.eager:
      return jacobi_drafts.blocks(self.n, fill)
    return jacobi_multiblock.multiblock(self.n, fill, self.blocks, self.ratio, self.eager)

  def make_pool(self):
    if self.pool is None:
      return None
    if len(self.pool) == 1:
      return jacobi_recycling.points(*self.pool, WIDTH + MAX_TOKENS + self.blocks * self.n)
    return jacobi_recycling.ngrams(*self.pool)

  def rules(self):
    def pool():
      if self.pool is None:
        return None
      kind = jacobi_reference.Points if len(self.pool) == 1 else jacobi_reference.NGrams
      return kind(*self.pool)

    return jacobi_reference.Rules(
      self.n, self.blocks, self.ratio, self.eager, self.window, pool=pool
    )


QUICK = Setting(5, window=True, pool=(4,))
LONG = [
  Setting(4, 3, 0.5, eager=True, pool=(10, 3, 2), mode="tree"),
  Setting(1),
  Setting(6),
  Setting(16, fill="vocabulary"),
  Setting(3, window=True, fill="vocabulary"),
  Setting(8, window=True, pool=(30, 2, 3), mode="tree"),
  Setting(4, pool=(6, 5, 6)),
  Setting(8, pool=(8,), mode="tree"),
  Setting(3, 2, 1.0),
  Setting(2, 4, 0.0, eager=True),
  Setting(1, 3, 0.5, eager=True, pool=(5, 2, 1)),
  Setting(5, 2, 0.85, pool=(4,)),
  Setting(6, 3, 0.3, pool=(12, 4, 2), mode="tree"),
]


@quick_jit
def autoregressive(params, prompts, lengths, limits, eos, temperature, keys):
  limits = base.Limits(MAX_TOKENS, tuple(eos), limits)
  sampler = ar.make_sampler(NET, limits, choose_at(temperature))
  return base.decode(sampler, params, prompts, lengths, keys).out


class Jacobi:
  """Jacobi decoding of one batch; temperature, EOS and limits are arguments."""

  def __init__(self, setting: Setting):
    self.setting = setting

    def decode(params, prompts, lengths, limits, eos, temperature, keys):
      sampler = jacobi.make_sampler(
        NET,
        base.Limits(MAX_TOKENS, tuple(eos), limits),
        verify.exact_match(choose_at(temperature)),
        setting.drafting(),
        setting.make_pool(),
        setting.mode,
      )
      return base.decode(sampler, params, prompts, lengths, keys).out

    self.fast = quick_jit(decode)


def batch_of(seed, temperature, with_eos):
  """A random model, and 32 random prompts with limits and keys of their own."""
  rng = np.random.default_rng(seed)
  params = models.random_params(NET, seed)
  params["head"] = rng.choice([0.2, 0.5, 1.0]) * params["head"]
  prompts = rng.integers(0, MASK, (ROWS, WIDTH)).astype(np.int32)
  lengths, limits = rng.integers(1, [[WIDTH + 1], [MAX_TOKENS + 1]], (2, ROWS)).astype(np.int32)
  limits[:4] = MAX_TOKENS
  keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), np.arange(ROWS))
  eos = np.array(EOS if with_eos else (-1, -1), np.int32)
  return params, prompts, lengths, limits, eos, np.float32(temperature), keys


def check(decoder: Jacobi, seed, temperature, with_eos, referred=0):
  """Compares all rows, `referred` of them with the reference too; returns both sums of forwards."""
  args = batch_of(seed, temperature, with_eos)
  slow, fast = jax.device_get((autoregressive(*args), decoder.fast(*args)))
  params, prompts, lengths, limits, eos, temperature, keys = args
  np.testing.assert_array_equal(fast.length_B, slow.length_B)
  np.testing.assert_array_equal(fast.eos_B, slow.eos_B)
  assert (fast.length_B - fast.prompt_len_B <= limits).all()
  assert (fast.nfe_B <= slow.nfe_B).all()
  assert (fast.nfe_B * decoder.setting.n * decoder.setting.blocks >= slow.nfe_B).all()
  for row in range(ROWS):
    stop = slow.length_B[row]
    assert fast.tokens_BxC[row, :stop].tolist() == slow.tokens_BxC[row, :stop].tolist()

  def finished(generated, limit):
    for i, token in enumerate(generated[:limit]):
      if token in eos:
        return generated[: i + 1]
    return generated[:limit] if len(generated) >= limit else None

  def logits_fn(tokens, visible):
    logits = network.forward(CONFIG, params, tokens, np.arange(len(tokens)), visible)
    logits[:, MASK] = -np.inf
    return logits

  choose = choose_at(temperature)
  rules = decoder.setting.rules()
  reference = jacobi_reference.reference(
    lambda key, logits: np.asarray(choose(key, np.float32(logits))), finished, rules
  )
  for row in range(referred):
    text = prompts[row, : lengths[row]].tolist()
    span = slice(len(text), int(fast.length_B[row]))
    found = (
      fast.tokens_BxC[row, span].tolist(),
      int(fast.nfe_B[row]),
      fast.reveal_step_BxC[row, span].tolist(),
    )
    assert found == reference(logits_fn, text, int(limits[row]), keys[row]), row
  return np.array([slow.nfe_B.sum(), fast.nfe_B.sum()])


def test_same_tokens_as_ar():
  decoder = Jacobi(QUICK)
  spent = check(decoder, 0, 0.0, True) + check(decoder, 1, 0.8, False)
  assert spent[1] < 0.9 * spent[0]


@pytest.mark.long
@pytest.mark.parametrize("setting", [QUICK, *LONG], ids=str)
def test_a_thousand_random_cases(setting):
  """14 settings, 3 batches of 32 rows: 1344; the first rows against the reference as well."""
  referred = 0 if setting.fill == "vocabulary" else 3
  decoder = Jacobi(setting)
  spent = sum(
    check(decoder, 10 * setting.n + seed, temperature, with_eos, referred)
    for seed, (temperature, with_eos) in enumerate([(0.0, False), (0.0, True), (0.9, False)])
  )
  assert spent[1] < spent[0] or setting.n == 1


# --- draws ----------------------------------------------------------------------------------------


def bigram_lm(table_VxV):
  """A model whose next token depends on the last one alone, by a table of logits."""
  config = models.config(vocab_size=table_VxV.shape[0])

  def apply(params, tokens_BxT, *, positions_BxT, mask, cache=None, slots_BxT=None):
    del params, positions_BxT, mask, slots_BxT
    return tokens_BxT[..., None], cache

  def init_cache(batch, capacity):
    return kv_cache.init(1, batch, capacity, 1, 2, "float32")

  logits = lambda params, hidden: jnp.asarray(table_VxV, jnp.float32)[hidden[..., 0]]
  return LM(config, lambda key: None, apply, logits, init_cache)


@pytest.mark.parametrize(
  "drafting",
  [
    jacobi_drafts.window(3, FROM_TEXT),
    pytest.param(jacobi_drafts.blocks(4, FROM_TEXT), marks=pytest.mark.long),
    pytest.param(jacobi_multiblock.multiblock(2, FROM_TEXT, 2, 0.5, True), marks=pytest.mark.long),
  ],
  ids=["window", "blocks", "multiblock"],
)
def test_resampling_draws_from_the_ar_distribution(drafting):
  """All outcomes of four tokens, against their exact probabilities."""
  rows, length, vocabulary, temperature = 40_000, 4, 4, 0.8
  table = np.random.default_rng(3).normal(size=(vocabulary, vocabulary))
  warp = sampling.warped(temperature)
  rule = verify.accept_or_resample(lambda x: jax.nn.log_softmax(warp(x), axis=-1))
  sampler = jacobi.make_sampler(bigram_lm(table), base.Limits(length), rule, drafting)
  prompts = np.tile(np.array([2, 1], np.int32), (rows, 1))
  run = quick_jit(lambda key: base.decode(sampler, None, prompts, np.full(rows, 2), key).out)
  out = jax.device_get(run(jax.random.key(3)))
  tokens = out.tokens_BxC[:, 2 : 2 + length]
  counts = np.bincount(tokens @ vocabulary ** np.arange(length)[::-1], minlength=vocabulary**length)

  p = network.softmax(table / temperature)
  exact = [
    np.prod([p[before, token] for before, token in itertools.pairwise((1, *outcome))])
    for outcome in itertools.product(range(vocabulary), repeat=length)
  ]
  assert statistics.chi_square_p(counts, np.array(exact)) > 1e-3
  assert out.nfe_B.mean() < length - 0.5  # drafts were accepted


# --- the pool of n-grams --------------------------------------------------------------------------


def test_the_pool_keeps_the_newest_distinct_ngrams():
  """Random points pushed one after another, against a list; distinct, evicted, found by key."""
  size, n, candidates, columns, batch = 7, 3, 2, 6, 4
  pool = jacobi_recycling.ngrams(size, n, candidates)
  rng = np.random.default_rng(0)
  lists = [jacobi_reference.NGrams(size, n, candidates) for _ in range(batch)]
  out = base.start(jnp.ones((batch, 4), jnp.int32), jnp.array([1, 2, 3, 4]), 12, 0)
  state = pool.init(out)
  push, match = quick_jit(pool.push), quick_jit(pool.match)
  found = 0
  for _ in range(12):
    # Some predictions behind the text; what is behind them must not get in.
    text = rng.integers(0, 3, out.tokens_BxC.shape).astype(np.int32)
    chosen = rng.integers(0, 3, (batch, columns)).astype(np.int32)
    number = rng.integers(1, columns + 1, batch).astype(np.int32)
    before = out.replace(tokens_BxC=text)
    moved = jacobi_drafts.Moved(before, before, chosen, chosen)
    plan = jacobi_drafts.Plan(number, number, text[:, :0])
    state = push(state, plan, out.length_B + number - 1, moved)
    chains = rng.integers(0, 3, (batch, columns)).astype(np.int32)
    num = rng.integers(1, columns + 1, batch).astype(np.int32)
    tried, valid = jax.device_get(match(state, chains, num))
    for row in range(batch):
      said = chosen[row, : number[row]].tolist()
      lists[row].push(text[row, : out.length_B[row]].tolist(), said)
      grams = [gram for gram in np.asarray(state[row]).tolist() if gram[0] >= 0]
      assert grams == lists[row].grams
      expected = lists[row].match(chains[row, 1 : num[row]].tolist(), int(chains[row, 0]))
      assert tried[row, valid[row], 1 : num[row]].tolist() == expected
      np.testing.assert_array_equal(tried[row, :, num[row] :], chains[[row] * 2, num[row] :])
      found += len(expected)
  assert found > 20 and max(len(x.grams) for x in lists) == size


# --- settings -------------------------------------------------------------------------------------


def test_settings_are_checked():
  limits = base.Limits(4)
  with pytest.raises(UsageError, match="block_size=0"):
    jacobi_drafts.blocks(0, FROM_TEXT)
  with pytest.raises(UsageError, match="spawn_ratio=1.5"):
    jacobi_multiblock.multiblock(4, FROM_TEXT, 2, 1.5)
  with pytest.raises(UsageError, match="n_gram=1"):
    jacobi_recycling.ngrams(8, 1, 2)
  with pytest.raises(UsageError, match="a pool of 1 points"):
    jacobi_recycling.points(1, 8)
  drafting, pool = jacobi_drafts.blocks(4, FROM_TEXT), jacobi_recycling.ngrams(8, 3, 2)
  with pytest.raises(UsageError, match="draft_mode='both'"):
    jacobi.make_sampler(NET, limits, EXACT, drafting, pool, "both")
  resample = verify.accept_or_resample(jax.nn.log_softmax)
  with pytest.raises(UsageError, match="exact_match"):
    jacobi.make_sampler(NET, limits, resample, drafting, pool)
