"""Jacobi decoding puts out what AR decoding does, and does the forwards it says."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax import cache as kv_cache
from sbdjax import pytree
from sbdjax.decode import base
from sbdjax.decode.causal.ar import AR
from sbdjax.decode.jacobi.drafts import (
  ForwardOutcome,
  FromText,
  FromVocabulary,
  Given,
  JacobiBlocks,
)
from sbdjax.decode.jacobi.jacobi import Jacobi, JacobiMultiblock, JacobiWindow
from sbdjax.decode.jacobi.recycling import NGrams, NoPool, Points
from sbdjax.decode.tokens import Categorical, Greedy, TokenSampler
from sbdjax.decode.verify import Resample
from sbdjax.errors import UsageError
from sbdjax.lm import LM, suppress
from tests import models
from tests.decode import jacobi_reference
from tests.decode.cases.case import CONFIG, MASK
from tests.jit import quick_jit
from tests.reference import network, statistics

NET = models.lm_of(vocab_size=12, mask_id=MASK, tie_embeddings=False)

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
  "method, right, wrong",
  [
    # Drafts all right: n tokens per forward. All wrong: one, then the predictions are right.
    (Jacobi(4), (3, 3 * 4, 3 * 3), (6, 3 * (4 + 3), 3 * (3 + 2))),
    # All wrong: one, then all n, which leaves no prediction to draft with.
    (JacobiWindow(4), (3, 3 * 4, 3 * 3), (6, 6 * 4, 6 * 3)),
    # Wrong: after its first token a block spawns another, the next forward fills the one and gives
    # the other right drafts, and one more fills that: 1, 3, 4, then again 1, 3.
    (
      JacobiMultiblock(4, num_blocks=2, spawn_ratio=0.25),
      (3, 3 * 4, 3 * 3),
      (5, 4 + 7 + 4 + 7 + 4, 3 + 2 + 3 + 2 + 3),
    ),
  ],
  ids=["blocks", "window", "multiblock"],
)
def test_forwards_and_query_tokens(method, right, wrong):
  """12 tokens with n = 4; row 0 is given the right drafts, row 1 wrong ones."""
  length, prompt = 12, np.array([[1, 2, 3]] * 2, np.int32)
  truth = (3 + np.arange(32)) % 11
  drafts = Given(np.stack([truth, (truth + 5) % 11]))
  sampler = method.replace(draft_init=drafts).sampler(counting_lm(), base.Limits(length))
  run = quick_jit(lambda key: base.decode(sampler, None, prompt, np.array([3, 3]), key).out)
  out = jax.device_get(run(jax.random.key(0)))
  assert out.tokens_BxC[:, 3 : 3 + length].tolist() == [truth[:length].tolist()] * 2
  for row, expected in enumerate((right, wrong)):
    found = (out.nfe_B[row], out.query_tokens_B[row], out.drafted_B[row])
    assert tuple(int(x) for x in found) == expected
  assert (out.length_B == 3 + length).all()


# --- the same tokens as AR ------------------------------------------------------------------------

ROWS, WIDTH, MAX_TOKENS, EOS = 32, 6, 14, (3, 7)


@pytree.dataclass
class At(TokenSampler):
  """Greedy at temperature 0, else a draw; the temperature may be traced."""

  temperature: jax.Array

  def __call__(self, key, logits):
    warm = logits / jnp.where(self.temperature > 0, self.temperature, 1.0)
    drawn = jax.random.categorical(key, warm, mode="high")
    return jnp.where(self.temperature > 0, drawn, jnp.argmax(logits, axis=-1)).astype(jnp.int32)


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

  def method(self, token):
    settings = dict(
      block_size=self.n,
      draft_init={"text": FromText(), "vocabulary": FromVocabulary()}[self.fill],
      pool=self.make_pool(),
      token=token,
    )
    if self.window:
      return JacobiWindow(**settings)
    if self.blocks == 1 and not self.eager:
      return Jacobi(**settings)
    return JacobiMultiblock(
      num_blocks=self.blocks, spawn_ratio=self.ratio, eager=self.eager, **settings
    )

  def make_pool(self):
    if self.pool is None:
      return NoPool()
    if len(self.pool) == 1:
      return Points(self.pool[0] - 1, self.mode)
    return NGrams(*self.pool, self.mode)

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
  sampler = AR(At(temperature)).sampler(NET, limits)
  return base.decode(sampler, params, prompts, lengths, keys).out


class Decoded:
  """Jacobi decoding of one batch; temperature, EOS and limits are arguments."""

  def __init__(self, setting: Setting):
    self.setting = setting

    def decode(params, prompts, lengths, limits, eos, temperature, keys):
      limits = base.Limits(MAX_TOKENS, tuple(eos), limits)
      sampler = setting.method(At(temperature)).sampler(NET, limits)
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


def check(decoder: Decoded, seed, temperature, with_eos, referred=0):
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

  choose = At(temperature)
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
  decoder = Decoded(QUICK)
  spent = check(decoder, 0, 0.0, True) + check(decoder, 1, 0.8, False)
  assert spent[1] < 0.9 * spent[0]


@pytest.mark.long
@pytest.mark.parametrize("setting", [QUICK, *LONG], ids=str)
def test_a_thousand_random_cases(setting):
  """14 settings, 3 batches of 32 rows: 1344; the first rows against the reference as well."""
  referred = 0 if setting.fill == "vocabulary" else 3
  decoder = Decoded(setting)
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
  "method",
  [
    JacobiWindow(3),
    pytest.param(Jacobi(4), marks=pytest.mark.long),
    pytest.param(
      JacobiMultiblock(2, num_blocks=2, spawn_ratio=0.5, eager=True), marks=pytest.mark.long
    ),
  ],
  ids=["window", "blocks", "multiblock"],
)
def test_resampling_draws_from_the_ar_distribution(method):
  """All outcomes of four tokens, against their exact probabilities."""
  rows, length, vocabulary, temperature = 40_000, 4, 4, 0.8
  table = np.random.default_rng(3).normal(size=(vocabulary, vocabulary))
  method = method.replace(verify=Resample(), token=Categorical(temperature))
  sampler = method.sampler(bigram_lm(table), base.Limits(length))
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
  pool = NGrams(size, n, candidates)
  rng = np.random.default_rng(0)
  lists = [jacobi_reference.NGrams(size, n, candidates) for _ in range(batch)]
  out = base.start(jnp.ones((batch, 4), jnp.int32), jnp.array([1, 2, 3, 4]), 12, 0)
  state = pool.init(out, 12)
  push, match = quick_jit(pool.push), quick_jit(pool.match)
  found = 0
  for _ in range(12):
    # Some predictions after the text; what is after them must not get in.
    text = rng.integers(0, 3, out.tokens_BxC.shape).astype(np.int32)
    chosen = rng.integers(0, 3, (batch, columns)).astype(np.int32)
    number = rng.integers(1, columns + 1, batch).astype(np.int32)
    before = out.replace(tokens_BxC=text)
    outcome = ForwardOutcome(before, before, chosen, chosen)
    blocks = JacobiBlocks(number, number, text[:, :0])
    state = push(state, blocks, out.length_B + number - 1, outcome)
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
  with pytest.raises(UsageError, match="block_size=0"):
    Jacobi(0)
  with pytest.raises(UsageError, match="spawn_ratio=1.5"):
    JacobiMultiblock(4, spawn_ratio=1.5)
  with pytest.raises(UsageError, match="num_blocks=0"):
    JacobiMultiblock(4, num_blocks=0)
  with pytest.raises(UsageError, match="n_gram=1"):
    NGrams(8, 1, 2)
  with pytest.raises(UsageError, match="num_candidates=9"):
    NGrams(8, 3, 9)
  with pytest.raises(UsageError, match="num_candidates=0"):
    Points(0)
  for pool in (NGrams, Points):
    with pytest.raises(UsageError, match="draft_mode='both'"):
      pool(draft_mode="both")
  with pytest.raises(UsageError, match="exact_match"):
    Jacobi(4, pool=NGrams(8, 3, 2), verify=Resample(), token=Categorical())
  with pytest.raises(UsageError, match="set a temperature above 0"):
    Jacobi(4, verify=Resample(), token=Greedy())


def test_the_canvas_is_the_drafts():
  """What the live view shows: from the end of the text to the last position a forward predicts."""
  method = JacobiMultiblock(4, num_blocks=2, spawn_ratio=0.0)
  sampler = method.sampler(counting_lm(), base.Limits(12))
  init, step = quick_jit(sampler.init), quick_jit(sampler.step)
  state = init(None, np.array([[1, 2, 3]], np.int32), np.array([3]), jax.random.key(0))
  start_B, size, end_B = method.canvas(state)
  assert (start_B.tolist(), size, end_B.tolist()) == ([3], 8, [7])
  state = step(None, state)  # spawns the second block
  start_B, size, end_B = method.canvas(state)
  assert (size, (end_B - 7).tolist()) == (8, [4]) and start_B[0] > 3
  assert method.last_drafts(state) is None


@pytest.mark.parametrize("mask_id", [None, 0, 5])
def test_first_drafts_are_never_the_mask_token(mask_id):
  shape = models.config(vocab_size=12, mask_id=mask_id)
  out = base.start(np.ones((3, 4), np.int32), np.array([4, 2, 1]), 9, fill=0)
  keys = jax.random.split(jax.random.key(0), 3)
  position = np.broadcast_to(np.arange(400), (3, 400))
  drafts = np.asarray(FromVocabulary()(shape, keys, out, position))
  assert set(drafts.ravel().tolist()) == set(range(12)) - {mask_id}
  assert (np.asarray(FromText()(shape, keys, out, position)) == 1).all()
