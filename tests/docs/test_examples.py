"""The worked examples of docs/howto: each does what its page says."""

import functools
import importlib
import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbdjax
from sbdjax import kernels, masks
from sbdjax.decode import flat_names
from sbdjax.decode.base import decode
from sbdjax.errors import UsageError
from sbdjax.interop import pretrained
from sbdjax.interop.hf import configs, families
from sbdjax.losses import get
from sbdjax.losses.ntp import NTPLoss
from tests import models
from tests.jit import quick_jit
from tests.reference import network

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "docs" / "examples"
PAGES = FOLDER.parent / "howto"


@pytest.fixture(autouse=True)
def on_path(monkeypatch):
  """As by PYTHONPATH=docs/examples."""
  monkeypatch.syspath_prepend(str(FOLDER))
  yield
  for path in FOLDER.glob("*.py"):
    sys.modules.pop(path.stem, None)


def test_every_example_is_shown_by_a_page():
  text = "".join(page.read_text() for page in PAGES.glob("*.md"))
  names = {path.name for path in FOLDER.glob("*.py")} - {"__init__.py"}
  assert len(names) == 6 and all(f"../examples/{name}" in text for name in names)


def test_rule():
  from relative_rule import Relative

  rng = np.random.default_rng(0)
  logits = (rng.normal(size=(30, 6, 5)) * rng.uniform(0.1, 5, (30, 6, 1))).astype(np.float32)
  masked = rng.random((30, 6)) < 0.6
  masked[0] = False
  found = np.asarray(jax.jit(lambda rule: rule(logits, jnp.asarray(masked)))(Relative(0.8)))
  confidence = network.softmax(logits.astype(np.float64)).max(-1)
  for row in range(30):
    open_ = np.flatnonzero(masked[row])
    best = max(confidence[row][open_], default=0.0)
    expected = {i for i in open_ if confidence[row, i] >= 0.8 * best}
    assert set(np.flatnonzero(found[row])) == expected
  method = flat_names.build({"name": "sbd", "rule": "relative_rule:Relative", "share": 0.7})
  assert method.rule == Relative(0.7)
  with pytest.raises(UsageError, match="share=1.5"):
    Relative(1.5)


@pytest.fixture(scope="module")
def tiny():
  """A random model with a mask token."""
  lm = sbdjax.make_lm(models.config(mask_id=31, vocab_size=32))
  return lm, quick_jit(lm.init)(jax.random.key(0))


def run(method, tiny, prompts, lengths, limits):
  sampler = method.sampler(tiny[0], limits)
  key = jax.random.split(jax.random.key(1), len(prompts))
  return sampler, (jnp.asarray(prompts), jnp.asarray(lengths), key)


@pytest.mark.long
def test_sampler(tiny):
  from chopped_blocks import ChoppedBlocks

  prompts, lengths, limits = [[5, 6, 7], [8, 9, 0]], [3, 2], sbdjax.Limits(7)
  sampler, given = run(ChoppedBlocks(4, 2), tiny, prompts, lengths, limits)
  out = jax.jit(lambda params: decode(sampler, params, *given))(tiny[1]).out
  np.testing.assert_array_equal(out.nfe_B, [4, 4])  # 7 tokens, 2 per forward
  np.testing.assert_array_equal(out.length_B, [10, 9])
  state = sampler.init(tiny[1], *given)
  for _ in range(4):
    state = sampler.step(tiny[1], state)
  np.testing.assert_array_equal(state.out.tokens_BxC[0, :10], out.tokens_BxC[0, :10])
  alone = (given[0][1:, :2], given[1][1:], given[2][1:])
  np.testing.assert_array_equal(
    decode(sampler, tiny[1], *alone).out.tokens_BxC[0, :9], out.tokens_BxC[1, :9]
  )
  assert not np.isin(out.tokens_BxC[0, :10], 31).any()
  with pytest.raises(UsageError, match="keep=5"):
    ChoppedBlocks(4, 5)


def test_loss(tiny):
  from smoothed_loss import Smoothed

  lm, params = tiny
  tokens = np.random.default_rng(0).integers(0, 31, (2, 6)).astype(np.int32)
  batch = dict(
    tokens=jnp.asarray(tokens),
    weights=jnp.ones((2, 6)),
    positions=jnp.broadcast_to(jnp.arange(6), (2, 6)),
    segment_ids=jnp.ones((2, 6), jnp.int32),
    example_id=jnp.arange(2),
  )
  assert get("smoothed_loss:Smoothed") is Smoothed
  key = jax.random.key(0)
  value = lambda loss: quick_jit(functools.partial(loss, lm))(params, batch, key)
  plain, weight, _ = value(NTPLoss())
  total, same_weight, metrics = value(Smoothed(0.0))
  np.testing.assert_allclose([total, same_weight], [plain, weight], rtol=1e-5)

  @quick_jit
  def logits(params):
    at = batch["positions"]
    hidden, _ = lm.apply(params, tokens, positions_BxT=at, mask=masks.Causal())
    return lm.logits(params, hidden)

  # Without the mask token, whose probability is 0.
  log_p = np.log(network.softmax(np.asarray(logits(params), np.float64)[..., :31]))
  expected = -sum(
    0.8 * log_p[b, t, tokens[b, t + 1]] + 0.2 * log_p[b, t].mean()
    for b in range(2)
    for t in range(5)
  )
  np.testing.assert_allclose(value(Smoothed(0.2))[0], expected, rtol=1e-5)
  np.testing.assert_allclose(metrics["ntp_loss"][0], plain, rtol=1e-5)


def attention_inputs(num_queries, num_keys):
  rng = np.random.default_rng(0)
  shapes = ((2, 4, num_queries, 8), (2, 2, num_keys, 8), (2, 2, num_keys, 8))
  return tuple(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)


def attend(backend, rule, q, k, v):
  plan = backend.plan(rule, q.shape[2], k.shape[2])
  run = quick_jit(lambda q, k, v: backend.attend(q, (k,), (v,), plan))
  return np.asarray(run(q, k, v))


def test_mask():
  from dense_kernel import BACKEND
  from window_mask import LastTokens

  length, window = 40, 5
  seen = np.asarray(masks.dense(LastTokens(window), length, length))[0]
  expected = [[q - window < s <= q for s in range(length)] for q in range(length)]
  np.testing.assert_array_equal(seen, expected)
  for tile in LastTokens(window).tiles(length, length, 16):
    inside = np.zeros(length, bool)
    for first, end in tile.keys:
      inside[first:end] = True
    assert not seen[tile.start : tile.stop, ~inside].any()
  inputs = attention_inputs(length, length)
  by_tiles = attend(kernels.backend.get("xla"), LastTokens(window), *inputs)
  np.testing.assert_allclose(by_tiles, attend(BACKEND, LastTokens(window), *inputs), atol=1e-5)


@pytest.mark.parametrize(
  ("rule", "shape"),
  [
    (masks.SBDTrain(3), (24, 24)),
    (masks.Cached(jnp.array([5, 0]), jnp.array([0, 2]), 2), (6, 14)),
    pytest.param(masks.Full(jnp.array([4, 0])), (3, 9), marks=pytest.mark.long),  # sees nothing
  ],
)
def test_kernel(rule, shape):
  from dense_kernel import BACKEND

  inputs = attention_inputs(*shape)
  plain = attend(kernels.backend.get("xla"), rule, *inputs)
  np.testing.assert_allclose(attend(BACKEND, rule, *inputs), plain, atol=1e-5)


def test_family(tmp_path, monkeypatch):
  """A folder of Qwen2's, whose config.json is given the new name."""
  import my_family

  known = dict(families.FAMILIES)
  for module in (families, configs, my_family):
    monkeypatch.setattr(module, "FAMILIES", known)
  lm = sbdjax.make_lm(models.config(qkv_bias=True, mask_id=None))
  params = quick_jit(lm.init)(jax.random.key(0))
  params = jax.tree.map(lambda x: x + 0.1, params)  # biases start at zero
  model = pretrained.Pretrained(lm, params, None, pretrained.GenerationDefaults((), None))
  sbdjax.save_pretrained(tmp_path / "model", model)
  config = tmp_path / "model" / "config.json"
  settings = json.loads(config.read_text())
  assert settings["architectures"] == ["Qwen2ForCausalLM"]
  config.write_text(json.dumps(settings | {"architectures": ["MyModelForCausalLM"]}))
  with pytest.raises(sbdjax.errors.CheckpointError, match="MyModelForCausalLM"):
    sbdjax.load_pretrained(tmp_path / "model")
  my_family.register()
  opened = sbdjax.load_pretrained(tmp_path / "model")
  assert opened.lm.config.qkv_bias
  tokens = jnp.arange(6)[None]
  logits = [
    quick_jit(
      lambda p, m=m: m.logits(p, m.apply(p, tokens, positions_BxT=tokens, mask=masks.Causal())[0])
    )(p)
    for m, p in ((lm, params), (opened.lm, opened.params))
  ]
  np.testing.assert_array_equal(*logits)


def test_the_examples_need_nothing_else():
  for path in FOLDER.glob("[!_]*.py"):
    importlib.import_module(path.stem)
