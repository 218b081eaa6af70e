"""Gated adapters: open tokens get the merged weights, all others the very bits of the base."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax import masks
from sbdjax.errors import UsageError
from sbdjax.nn import adapter
from sbdjax.nn.adapter import AdapterConfig
from sbdjax.nn.config import from_record
from sbdjax.nn.sigma import HeadConfig
from sbdjax.sigma_lm import make_sigma_lm
from tests import models
from tests.jit import quick_jit
from tests.nn.test_transformer import VARIANTS

MASK, L, K = 12, 7, 3
SMALL = AdapterConfig(rank=3, alpha=5.0)
# Families with biases, norms of heads, an MLP without a gate, learned positions.
NAMES = [
  "qwen2",
  "gpt2",
  *(pytest.param(name, marks=pytest.mark.long) for name in ("qwen3", "llama2c", "bert")),
]


def pair(name, config=SMALL):
  """(base, model with an adapter, its random parameters)."""
  changes = {**VARIANTS[name], "mask_id": MASK}
  lm = models.lm_of(**changes, adapter=config)
  return models.lm_of(**changes), lm, models.random_params(lm)


def merged(lm, params):
  """Parameters of the base with the updates added to the weights, for every token."""
  base, ours = adapter.split(params)
  scale = lm.config.adapter.alpha / lm.config.adapter.rank
  layers = jax.tree.map(np.asarray, base["layers"])
  for part, leaves in ours["layers"].items():
    for name in {name[: -len("_adapter_a")] for name in leaves}:
      a, b = (np.asarray(leaves[f"{name}_adapter_{x}"], np.float64) for x in "ab")
      kernel = layers[part][f"{name}_kernel"]
      layers[part][f"{name}_kernel"] = (kernel + scale * (a @ b).reshape(kernel.shape)).astype("f4")
  table = np.array(base["embedding"])
  table[MASK] = ours["mask_embedding"]
  return {**base, "layers": layers, "embedding": jnp.asarray(table)}


@functools.cache
def run_block(lm, old, num_causal):
  """`_block` as one program for all parameters."""
  return quick_jit(functools.partial(_block, lm, old, num_causal))


def block_of(lm, prefill, params, tokens, num_causal):
  """Hidden states of the last tokens, after a cache of the first 4 that `prefill` makes."""
  old, old_params = prefill
  return run_block(lm, old, num_causal)(old_params, params, tokens)


@functools.cache
def hidden_of(lm):
  """A jitted forward without a cache, which returns hidden states."""
  return quick_jit(
    lambda params, tokens, at, mask: lm.apply(params, tokens, positions_BxT=at, mask=mask)[0]
  )


def _block(lm, old, num_causal, old_params, params, tokens):
  zero, cache = jnp.zeros(2, jnp.int32), lm.init_cache(2, 8)
  at = models.positions(2, L)
  _, cache = old.apply(
    old_params,
    tokens[:, :4],
    positions_BxT=at[:, :4],
    mask=masks.Cached(zero, zero, 4),
    cache=cache,
  )
  new = tokens[:, L - K - num_causal :]
  mask = masks.Cached(zero + 4 - num_causal, zero, num_causal)
  inputs = dict(positions_BxT=at[:, L - K - num_causal :], mask=mask, cache=cache)
  return lm.apply(params, new, **inputs)[0]


def half_masked():
  tokens = models.tokens(2, L, vocab_size=MASK)
  tokens[:, -K:] = MASK
  tokens[0, -2] = 5  # a token of the block that was revealed
  return tokens


@pytest.mark.parametrize("name", NAMES)
def test_open_tokens_get_the_merged_weights_over_keys_of_the_base(name):
  base, lm, params = pair(name)
  clean = base, adapter.split(params)[0]
  found = block_of(lm, clean, params, half_masked(), 0)
  expected = block_of(base, clean, merged(lm, params), half_masked(), 0)
  np.testing.assert_allclose(found, expected, atol=3e-5)
  bare = block_of(base, clean, clean[1], half_masked(), 0)
  assert np.abs(found - bare).max() > 0.3


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
def test_clean_tokens_of_the_same_forward_keep_their_bits(name):
  base, lm, params = pair(name)
  clean = adapter.split(params)[0]
  mask, tokens = masks.SBDTrain(K), np.tile(models.tokens(2, 6, vocab_size=13), (1, 2))
  inputs = np.tile(models.positions(2, 6), (1, 2)), mask
  found, bare = hidden_of(lm)(params, tokens, *inputs), hidden_of(base)(clean, tokens, *inputs)
  np.testing.assert_array_equal(found[:, :6], bare[:, :6])
  assert np.abs(found[:, 6:] - bare[:, 6:]).max(axis=-1).min() > 0.05
  # Not even the mask token, where it is no token of an open block.
  inputs = np.full((2, 6), MASK, np.int32), models.positions(2, 6), masks.Causal()
  np.testing.assert_array_equal(hidden_of(lm)(params, *inputs), hidden_of(base)(clean, *inputs))


def test_a_fresh_adapter_changes_nothing_but_the_mask_row():
  base, lm, _ = pair("qwen2")
  params = jax.jit(lm.init)(jax.random.key(1))
  clean = adapter.split(params)[0]
  assert not any(np.any(x) for k, x in flat(params).items() if k.endswith("_adapter_b"))
  assert all(np.all(x != 0) for k, x in flat(params).items() if k.endswith("_adapter_a"))
  tokens = half_masked()
  own = {**params, "mask_embedding": params["embedding"][MASK]}
  bare = block_of(base, (base, clean), clean, tokens, 0)
  np.testing.assert_array_equal(block_of(lm, (base, clean), own, tokens, 0), bare)
  other = {**clean, "embedding": clean["embedding"].at[MASK].set(params["mask_embedding"])}
  np.testing.assert_array_equal(
    block_of(lm, (base, clean), params, tokens, 0),
    block_of(base, (base, clean), other, tokens, 0),
  )


def flat(params):
  leaves = jax.tree_util.tree_leaves_with_path(params)
  return {jax.tree_util.keystr(p, simple=True, separator="/"): x for p, x in leaves}


@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.long), 2])
def test_prepared_parameters_are_the_same_network(rows):
  base, lm, params = pair("qwen2")
  clean, tokens = (base, adapter.split(params)[0]), half_masked()
  run = lambda p: block_of(lm, clean, p, tokens, 2)
  prepared = lm.prepare(params, rows)
  assert isinstance(prepared["layers"], tuple)
  np.testing.assert_allclose(run(prepared), run(params), atol=1e-5)


def test_projections_that_are_not_named_have_no_parameters():
  _, lm, params = pair("qwen2", AdapterConfig(2, projections=("v", "down")))
  ours = {name.split("/")[-1] for name in flat(adapter.split(params)[1])}
  assert ours == {
    "v_adapter_a", "v_adapter_b", "down_adapter_a", "down_adapter_b", "mask_embedding",
  }  # fmt: skip
  assert jax.tree.structure(adapter.join(*adapter.split(params))) == jax.tree.structure(params)


def test_an_adapter_of_a_half_precision_model_is_float32():
  lm = models.lm_of(mask_id=MASK, adapter=SMALL, param_dtype="bfloat16", compute_dtype="bfloat16")
  params = jax.eval_shape(lm.init, jax.random.key(0))
  base, ours = adapter.split(params)
  assert {x.dtype.name for x in jax.tree.leaves(ours)} == {"float32"}
  assert {x.dtype.name for x in jax.tree.leaves(base)} == {"bfloat16"}
  inputs = models.tokens(1, 6), models.positions(1, 6), masks.SBDTrain(3)
  assert jax.eval_shape(hidden_of(lm), params, *inputs).dtype == jnp.bfloat16


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    (dict(mlp="gelu", adapter=dict(projections=("q", "gate"))), "'gate'.*q, k, v, o, up, down"),
    (dict(adapter=dict(projections=("query",))), "'query'"),
    (dict(adapter=dict(projections=("q", "q"))), "twice"),
    (dict(adapter=dict(rank=0)), "rank=0"),
    (dict(adapter=dict(alpha=0.0)), "alpha"),
    (dict(adapter={}, mask_id=None), "no mask token"),
    (dict(adapter={}, token_dropout=True), "token_dropout"),
  ],
)
def test_senseless_settings_are_refused(changes, words):
  with pytest.raises(UsageError, match=words):
    models.config(**{"mask_id": MASK, **changes})


def test_a_record_of_an_adapter_is_read_back():
  config = models.config(mask_id=MASK, adapter=dict(rank=4))
  assert config.adapter == AdapterConfig(4, 16.0, adapter.PROJECTIONS) and hash(config)
  assert from_record(json.loads(json.dumps(dataclasses.asdict(config)))) == config
  with pytest.raises(UsageError, match="model.adapter.ranks"):
    from_record({**dataclasses.asdict(config), "adapter": {"ranks": 4}})


def test_a_self_speculative_model_has_none():
  with pytest.raises(UsageError, match="causal half"):
    make_sigma_lm(models.config(mask_id=MASK, adapter=SMALL), HeadConfig())
