"""Parameters prepared for decoding: the same network, without copies of weights or of the cache."""

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax import cache as kv_cache
from sbdjax import masks
from sbdjax.nn import layers, prepare
from sbdjax.nn.linear import Transposed, linear
from sbdjax.nn.sigma import HeadConfig
from sbdjax.sigma_lm import make_sigma_lm
from tests import models
from tests.nn.test_transformer import VARIANTS, cached_step, logits_of
from tests.reference import network, visibility

T = 9
DEEP = dict(num_layers=13)  # more than `prepare` separates where layers are small


def last_layer(params):
  """Keys of the last layer's parameters in either form, and the leaves."""
  stack = params["layers"]
  return stack[-1] if isinstance(stack, tuple) else jax.tree.map(lambda x: x[-1], stack)


# One row only separates the layers, which a few models show.
_FORWARDS = [(name, rows) for rows in (1, 2) for name in (*VARIANTS, "deep", "large")]
_OFTEN_ALONE = ("qwen2", "gpt2", "large", "deep")


@pytest.mark.parametrize(
  ("name", "rows"),
  [
    pytest.param(name, rows, marks=[pytest.mark.long] * (rows == 1 and name not in _OFTEN_ALONE))
    for name, rows in _FORWARDS
  ],
)
def test_forward_equals_numpy(name, rows, monkeypatch):
  # Two layers that stay stacked as many do: more of them round to more than 2e-5 on some processors,
  # with prepared parameters and without.
  if name in ("deep", "large"):
    monkeypatch.setattr(prepare, "_FEW_LAYERS", 1)
  if name == "large":
    monkeypatch.setattr(prepare, "_LARGE_LAYER", 0)
  two = dict(num_layers=2)
  lm = models.lm_of(**{**VARIANTS, "deep": two, "large": two}[name])
  params = models.random_params(lm)
  tokens, positions = models.tokens(2, T), models.positions(2, T)
  prepared = lm.prepare(params, rows)
  assert isinstance(prepared["layers"], tuple) == (name != "deep")
  if name == "large" or (rows > 1 and name != "deep"):
    attn = prepared["layers"][0]["attn"]
    assert isinstance(attn["q_kernel+k_kernel+v_kernel"], Transposed) and "q_kernel" not in attn
  found = logits_of(lm, prepared, tokens, masks.Causal(), positions)
  for row in range(2):
    args = (params, tokens[row], positions[row], visibility.causal(T))
    np.testing.assert_allclose(found[row], network.forward(lm.config, *args), atol=2e-5)


@pytest.mark.parametrize(
  ("widths", "rows"),
  [
    ((1,) * 4, 1),
    ((5, 1, 3), 2),
    pytest.param((1,) * 4, 2, marks=pytest.mark.long),
    pytest.param((5, 1, 3), 1, marks=pytest.mark.long),
  ],
)
@pytest.mark.parametrize(
  "changes",
  [{}, pytest.param(dict(remat="full", tie_embeddings=False), marks=pytest.mark.long)],
)
def test_cached_windows_equal_those_of_stacked_parameters(widths, rows, changes):
  lm = models.lm_of(**changes)
  params = models.random_params(lm)
  tokens = models.tokens(1, T)

  def run(params):
    cache, out, first = lm.init_cache(1, T), [], 0
    for width in widths:
      where = models.positions(1, T)[:, first : first + width]
      new = tokens[:, first : first + width]
      step = cached_step(lm, width)
      logits, cache = step(params, cache, new, where, jnp.zeros(1, jnp.int32), where)
      cache = kv_cache.commit(cache, jnp.full(1, width))
      out.append(logits)
      first += width
    return np.concatenate(out, axis=1), cache

  expected, cache = run(params)
  found, cache_of_prepared = run(lm.prepare(params, rows))
  np.testing.assert_allclose(found, expected, atol=1e-5)
  np.testing.assert_array_equal(found.argmax(-1), expected.argmax(-1))
  np.testing.assert_allclose(cache_of_prepared.k, cache.k, atol=1e-5)
  np.testing.assert_allclose(cache_of_prepared.v, cache.v, atol=1e-5)


def test_dropout_drops_the_same_channels():
  lm = models.lm_of(dropout=0.5)
  params, keys = models.random_params(lm), jax.random.split(jax.random.key(3), 2)
  inputs = dict(positions_BxT=models.positions(2, T), mask=masks.Causal())
  found, expected = (
    lm.dropping(keys).apply(p, models.tokens(2, T), **inputs)[0]
    for p in (lm.prepare(params), params)
  )
  np.testing.assert_allclose(found, expected, atol=1e-5)
  assert np.abs(expected - lm.apply(params, models.tokens(2, T), **inputs)[0]).max() > 0.1


def test_a_self_speculative_model():
  lm = make_sigma_lm(models.config(mask_id=12), HeadConfig(num_layers=2))
  params = models.random_params(lm)
  tokens, sigma = models.tokens(2, T), np.tile(np.random.default_rng(0).permutation(T), (2, 1))

  def run(params):
    hidden = lm.trunk(params, tokens)
    return lm.logits(params, lm.target(params, tokens, hidden, sigma))

  prepared = lm.prepare(params)
  assert all(isinstance(prepared[part]["layers"], tuple) for part in ("trunk", "head"))
  assert lm.prepare(prepared) is prepared
  np.testing.assert_allclose(run(prepared), run(params), atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 32, 33])
def test_a_transposed_weight(rows):
  rng = np.random.default_rng(0)
  x, w = rng.normal(size=(1, rows, 6)).astype(np.float32), rng.normal(size=(6, 5))
  found = linear(x, Transposed(jnp.asarray(w.T, jnp.float32)))
  assert found.shape == (1, rows, 5)
  np.testing.assert_allclose(found, x @ w, atol=1e-5)
  assert linear(x.astype(jnp.bfloat16), Transposed(jnp.asarray(w.T))).dtype == jnp.bfloat16


@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.long), 2])
def test_weights_are_kept_in_the_dtype_of_products(rows):
  lm = models.lm_of(product_dtype="bfloat16", **DEEP)
  params = models.random_params(lm)
  prepared = lm.prepare(params, rows)
  kernels = [x for layer in prepared["layers"] for x in jax.tree.leaves(layer) if x.ndim == 2]
  assert len(kernels) == 13 * 4 and {x.dtype for x in kernels} == {jnp.dtype("bfloat16")}
  assert prepared[prepare.HEAD].rows.w.dtype == jnp.bfloat16
  args = models.tokens(2, T), masks.Causal(), models.positions(2, T)
  expected = logits_of(lm, params, *args)
  np.testing.assert_allclose(logits_of(lm, prepared, *args), expected, atol=0.02)
  exact = logits_of(models.lm_of(**DEEP), params, *args)
  assert 0.1 < np.abs(exact - expected).max() < 1  # 26 products one after the other


# --- what is made --------------------------------------------------------------------------------


def test_separate_layers_share_the_memory_of_stacked_ones():
  lm = models.lm_of(vocab_size=64)
  params = jax.jit(lm.init)(jax.random.key(0))
  prepared = lm.prepare(params)
  stacked, separate = (p["attn"]["q_kernel"] for p in (params["layers"], prepared["layers"][1]))
  start = stacked.unsafe_buffer_pointer() + stacked.nbytes // 2
  assert separate.unsafe_buffer_pointer() == start
  tied = lm.prepare(params, 2)[prepare.HEAD]
  assert tied.rows.w is params["embedding"] and tied.columns is None


def test_large_layers_are_separate_however_many(monkeypatch):
  lm = models.lm_of(**DEEP)
  params = models.random_params(lm)
  size = sum(x.size for x in jax.tree.leaves(params["layers"])) / 13
  for limit, separate in ((size, True), (size + 1, False)):
    monkeypatch.setattr(prepare, "_LARGE_LAYER", limit)
    assert isinstance(lm.prepare(params)["layers"], tuple) == separate


def test_what_is_not_on_one_device_is_returned_as_given():
  lm = models.lm_of()
  params = models.random_params(lm)
  mesh = jax.make_mesh((1,), ("data",))
  everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  for given in (jax.eval_shape(lambda: params), jax.device_put(params, everywhere)):
    assert lm.prepare(given) is given
  traced = jax.eval_shape(lambda p: lm.prepare(p), params)
  assert jax.tree.structure(traced) == jax.tree.structure(params)
  prepared = lm.prepare(params)
  assert lm.prepare(prepared) is prepared
  assert jax.tree.structure(lm.prepare(jax.device_get(params))) == jax.tree.structure(prepared)


class Device(NamedTuple):
  """One that is not here."""

  platform: str
  bytes_limit: int

  def memory_stats(self):
    return {"bytes_limit": self.bytes_limit, "bytes_in_use": 0}


def test_on_a_gpu_layers_are_separate_if_they_fit_twice():
  lm = models.lm_of()
  params = models.random_params(lm)
  size = sum(x.nbytes for x in jax.tree.leaves(params["layers"]))
  assert prepare.for_device(params, 1, Device("gpu", 2 * size)) is params
  assert prepare.for_device(params, 1, Device("tpu", 9 * size)) is params
  found = prepare.for_device(params, 1, Device("gpu", 2 * size + 1))
  assert isinstance(found["layers"], tuple) and prepare.HEAD not in found
  for n, layer in enumerate(found["layers"]):
    for a, b in zip(jax.tree.leaves(layer), jax.tree.leaves(params["layers"]), strict=True):
      np.testing.assert_array_equal(a, b[n])


def test_prepared_parameters_compile_once():
  lm, traced = models.lm_of(), []
  inputs = dict(positions_BxT=models.positions(1, T), mask=masks.Causal())

  @jax.jit
  def run(params):
    traced.append(1)
    return lm.apply(params, models.tokens(1, T), **inputs)[0]

  for seed in range(3):
    run(lm.prepare(models.random_params(lm, seed), 2))
  assert len(traced) == 1


# --- what is compiled ----------------------------------------------------------------------------


def decoding_loop(lm, params, width):
  """The compiled program of four cached forwards."""
  zero = jnp.zeros(1, jnp.int32)

  def step(_, carry):
    tokens, cache = carry
    where = cache.length_B[:, None] + jnp.arange(width)
    mask = masks.Cached(cache.length_B, zero, width)
    hidden, cache = lm.apply(params, tokens, positions_BxT=where, mask=mask, cache=cache)
    return jnp.argmax(lm.logits(params, hidden), axis=-1), kv_cache.commit(cache, zero + 1)

  def loop(params, cache):
    tokens = jnp.zeros((1, width), jnp.int32)
    return jax.lax.fori_loop(0, 4, step, (tokens, cache))

  return jax.jit(loop).lower(params, lm.init_cache(1, 40)).compile().as_text()


# Shapes that nothing else in the program has.
SIZES = dict(d_model=24, num_heads=3, num_kv_heads=3, head_dim=8, d_ff=56, num_layers=3)
CACHE = r"f32\[3,1,3,40,8\]\S* copy\("


def slices_of_weights(program):
  """Instructions that cut a projection's weights out of an array of all layers."""
  return re.findall(r"f32\[1,(?:24,56|56,24|24,3,8|3,8,24)\]\S* dynamic-slice\(", program)


@pytest.mark.parametrize("width", [1, pytest.param(4, marks=pytest.mark.long)])
def test_no_program_copies_weights_or_the_cache(width, monkeypatch):
  lm = models.lm_of(**SIZES)
  params = models.random_params(lm)
  stacked, separate = (decoding_loop(lm, p, width) for p in (params, lm.prepare(params, width)))
  assert slices_of_weights(stacked) and not slices_of_weights(separate)
  # What the program is given is copied, once before the loop: keys and values.
  assert len(re.findall(CACHE, separate)) == 2
  monkeypatch.setattr(layers, "known_after", lambda x, value: value)
  assert len(re.findall(CACHE, decoding_loop(lm, lm.prepare(params, width), width))) > 2
