"""Schedules against their formulas, AdamW against numpy, and what decay leaves alone."""

import dataclasses
import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sbdjax.errors import UsageError
from sbdjax.lm import make_lm
from sbdjax.nn.transformer import TransformerConfig
from sbdjax.train.optim import OptimConfig, decay_mask, make_optimizer, make_schedule
from sbdjax.train.state import leaf_names
from tests import models
from tests.jit import quick_jit


def _expected(schedule, step, peak=2.0, warmup=4, steps=20, final=0.25):
  if step < warmup:
    return peak * (step + 1) / (warmup + 1)
  done = (step - warmup) / (steps - warmup)
  return {
    "constant": peak,
    "linear": peak * (1 - done * (1 - final)),
    "cosine": peak * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * done))),
  }[schedule]


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_schedule_follows_its_formula(schedule):
  config = OptimConfig(learning_rate=2.0, schedule=schedule, warmup_steps=4, final_fraction=0.25)
  found = quick_jit(jax.vmap(make_schedule(config, 20)))(np.arange(21))
  np.testing.assert_allclose(found, [_expected(schedule, step) for step in range(21)], rtol=1e-5)


def test_the_first_update_moves_and_warmup_must_fit():
  assert make_schedule(OptimConfig(warmup_steps=10), 20)(0) > 0
  with pytest.raises(UsageError, match="warmup_steps=20.*train.steps=20"):
    make_schedule(OptimConfig(warmup_steps=20), 20)


def test_clipped_adamw_matches_numpy():
  config = OptimConfig(
    learning_rate=0.1, schedule="constant", weight_decay=0.5, clip_norm=1.0, b1=0.9, b2=0.95
  )
  tx = make_optimizer(config, 10).tx
  params = {"kernel": np.array([1.0, -2.0], np.float32), "bias": np.array([3.0], np.float32)}
  state, update = quick_jit(tx.init)(params), quick_jit(tx.update)
  expected = {k: np.array(v, np.float64) for k, v in params.items()}
  m = {k: np.zeros_like(v) for k, v in expected.items()}
  v = {k: np.zeros_like(x) for k, x in expected.items()}
  for t in range(1, 4):
    grads = {"kernel": np.array([0.3 * t, 4.0], np.float32), "bias": np.array([-1.0], np.float32)}
    updates, state = update(grads, state, params)
    params = jax.tree.map(np.add, params, updates)
    norm = np.sqrt(sum(np.sum(np.square(np.array(g, np.float64))) for g in grads.values()))
    for name in expected:
      g = np.array(grads[name], np.float64) / max(norm, 1.0)
      m[name] = 0.9 * m[name] + 0.1 * g
      v[name] = 0.95 * v[name] + 0.05 * g**2
      step = m[name] / (1 - 0.9**t) / (np.sqrt(v[name] / (1 - 0.95**t)) + 1e-8)
      decay = 0.5 * expected[name] if name == "kernel" else 0.0
      expected[name] = expected[name] - 0.1 * (step + decay)
  for name in expected:
    np.testing.assert_allclose(params[name], expected[name], rtol=1e-5)


def test_decay_spares_exactly_what_is_a_vector_in_each_layer():
  config = TransformerConfig(
    vocab_size=11, num_layers=2, d_model=8, num_heads=2, num_kv_heads=1, d_ff=12, max_seq_len=8,
    qkv_bias=True, qk_norm=True, tie_embeddings=False,
  )  # fmt: skip
  params = jax.eval_shape(make_lm(config).init, jax.random.key(0))
  decayed = leaf_names(decay_mask(params))
  for name, leaf in leaf_names(params).items():
    shape = leaf.shape[1:] if name.startswith("layers/") else leaf.shape
    # A q, k or v bias is a vector laid out as [heads, head_dim].
    vector = len(shape) == 1 or (len(shape) == 2 and shape[-1] == 4 and "bias" in name)
    assert decayed[name] == (not vector), name


@pytest.mark.parametrize(
  "field", [{"schedule": "cosin"}, {"learning_rate": 0.0}, {"b2": 1.0}, {"clip_norm": -1.0}]
)
def test_unusable_settings_are_named(field):
  with pytest.raises(UsageError, match=f"optim.{next(iter(field))}"):
    OptimConfig(**field)


MUON = OptimConfig(
  name="muon", learning_rate=0.1, schedule="constant", clip_norm=0.0, weight_decay=0.0, b2=0.99
)


@functools.cache
def _one_update(config):
  """(parameters, gradients, updates) of a tiny network, by name."""
  lm = models.lm_of(qkv_bias=True)
  params = models.random_params(lm, seed=1)
  grads = models.random_params(lm, seed=2)
  updates = _first_update(make_optimizer(config, 10).tx, grads, params)
  return leaf_names(params), leaf_names(grads), leaf_names(updates)


def _first_update(tx, grads, params):
  """Of a fresh state, in one program: one by one its operations take seconds to compile."""
  return quick_jit(lambda grads, params: tx.update(grads, tx.init(params), params)[0])(
    grads, params
  )


def _as_matrices(name, x):
  """[N, rows, columns] of a stacked kernel, by the names of its axes."""
  n = x.shape[0]
  rows = x.shape[1] * x.shape[2] if name.endswith("o_kernel") else x.shape[1]
  return np.asarray(x, np.float64).reshape(n, rows, -1)


@pytest.mark.long
def test_muon_orthogonalises_each_layers_matrices():
  _, grads, updates = _one_update(MUON)
  kernels = [name for name in grads if name.endswith("_kernel")]
  assert len(kernels) == 7
  for name in kernels:
    for gradient, update in zip(
      _as_matrices(name, grads[name]), _as_matrices(name, updates[name]), strict=True
    ):
      u, _, vt = np.linalg.svd(gradient, full_matrices=False)
      # The polar factor of the gradient, at the RMS of an Adam update; Newton-Schulz leaves the
      # singular values within about 30 % of 1.
      scale = 0.1 * 0.2 * np.sqrt(max(gradient.shape))
      singular = np.diag(u.T @ -update @ vt.T) / scale
      assert singular.min() > 0.6 and singular.max() < 1.3, name
      off = u.T @ -update @ vt.T / scale - np.diag(singular)
      assert np.abs(off).max() < 0.01, name


def test_muon_leaves_the_rest_to_adam():
  params, grads, updates = _one_update(MUON)
  tx = optax.nadam(0.1, b1=MUON.b1, b2=MUON.b2, eps=MUON.eps)
  adam = _first_update(tx, grads, params)
  others = [name for name in grads if not name.endswith("_kernel")]
  assert {"embedding", "final_norm/scale", "layers/attn/q_bias"} <= set(others)
  for name in others:
    np.testing.assert_allclose(updates[name], adam[name], rtol=1e-5, err_msg=name)


def test_muon_decays_what_adamw_decays():
  params, _, without = _one_update(MUON)
  _, _, updates = _one_update(dataclasses.replace(MUON, weight_decay=0.5))
  mask = leaf_names(decay_mask(params))
  for name, p in params.items():
    decay = 0.1 * 0.5 * p if mask[name] else 0.0 * p
    np.testing.assert_allclose(updates[name], without[name] - decay, atol=1e-6, err_msg=name)


def test_an_unknown_optimizer_is_named():
  with pytest.raises(UsageError, match="optim.name='sgd'.*adamw.*muon"):
    OptimConfig(name="sgd")


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_frozen_parameters_get_no_gradient_no_update_and_no_state(name):
  """The others get the update that they would get alone."""
  layer = {"q_kernel": (1 + jnp.arange(12.0)).reshape(1, 2, 2, 3) / 7}
  head = {"layers": {"attn": layer}, "out_kernel": jnp.full((3,), 2.0)}
  params = {"trunk": {"layers": {"attn": layer}, "kernel": jnp.ones((2, 3))}, "head": head}
  config = OptimConfig(name=name, weight_decay=0.5)
  optimizer = make_optimizer(dataclasses.replace(config, frozen="^trunk/"), 10)

  def loss(p):
    p = optimizer.freeze(p)
    return sum(jnp.sum(jnp.sin(x) ** 2) for x in jax.tree.leaves(p))

  grads = quick_jit(jax.grad(loss))(params)
  assert not any(np.any(x) for x in jax.tree.leaves(grads["trunk"]))
  assert all(np.all(x != 0) for x in jax.tree.leaves(grads["head"]))

  alone = make_optimizer(config, 10).tx
  state, own = quick_jit(optimizer.tx.init)(params), quick_jit(alone.init)({"head": head})
  sizes = lambda tree: sorted(np.shape(x) for x in jax.tree.leaves(tree))
  assert sizes(state) == sizes(own)
  stray = {**grads, "trunk": jax.tree.map(jnp.ones_like, params["trunk"])}
  updates, _ = quick_jit(optimizer.tx.update)(stray, state, params)
  expected, _ = quick_jit(alone.update)({"head": grads["head"]}, own, {"head": head})
  assert not any(np.any(x) for x in jax.tree.leaves(updates["trunk"]))
  chex.assert_trees_all_close(updates["head"], expected["head"], rtol=1e-6)


@pytest.mark.parametrize(
  ("pattern", "match"), [("^trunc/", "no parameter"), (".", "every parameter")]
)
def test_a_frozen_pattern_must_divide_the_parameters(pattern, match):
  tx = make_optimizer(OptimConfig(frozen=pattern), 10).tx
  with pytest.raises(UsageError, match=match):
    tx.init({"trunk": jnp.ones(2), "head": jnp.ones(2)})


def test_a_frozen_pattern_must_be_a_regular_expression():
  with pytest.raises(UsageError, match="regular expression"):
    OptimConfig(frozen="(")
