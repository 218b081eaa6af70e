"""The update against the plain gradient of the ratio, and microbatches against whole batches."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sbdjax.train import state as state_lib
from sbdjax.train.optim import OptimConfig, Optimizer, make_optimizer
from sbdjax.train.step import TrainStepConfig, make_eval_step, make_train_step
from tests.train import toy

KEY = jax.random.key(5)


def _sgd():
  """new params = params - gradient, so that one update shows the gradient itself."""
  return Optimizer(optax.sgd(1.0), lambda step: jnp.ones(()))


def _state(optimizer, ema=False):
  return state_lib.create(toy.LM.init(jax.random.key(0)), optimizer.tx, KEY, ema=ema)


def _step(optimizer, **config):
  return jax.jit(make_train_step(toy.LM, toy.masked_loss, optimizer, TrainStepConfig(**config)))


def _worst(a, b):
  return max(jax.tree.leaves(jax.tree.map(lambda x, y: float(jnp.max(jnp.abs(x - y))), a, b)))


def test_gradient_is_that_of_the_mean_over_all_weights():
  optimizer = _sgd()
  state, batch = _state(optimizer), toy.make_batch(0)

  def ratio(params):
    total, weight, _ = toy.masked_loss(toy.LM, params, batch, jax.random.fold_in(KEY, 0))
    return total / weight

  loss, grads = jax.jit(jax.value_and_grad(ratio))(state.params)
  for accumulation in (1, 4):
    new, metrics = _step(optimizer, accumulation=accumulation)(state, batch)
    assert _worst(new.params, jax.tree.map(jnp.subtract, state.params, grads)) < 1e-6
    np.testing.assert_allclose(metrics["loss"][0] / metrics["loss"][1], loss, rtol=1e-6)
    norm = np.sqrt(sum(np.sum(np.square(g)) for g in jax.tree.leaves(grads)))
    np.testing.assert_allclose(metrics["grad_norm"][0], norm, rtol=1e-5)


def test_accumulation_gives_the_parameters_of_the_whole_batch():
  optimizer = make_optimizer(OptimConfig(learning_rate=0.01, warmup_steps=1), 4)
  whole, cut = _step(optimizer), _step(optimizer, accumulation=4)
  a = b = _state(optimizer)
  for i in range(4):
    batch = toy.make_batch(i)
    a, metrics_a = whole(a, batch)
    b, metrics_b = cut(b, batch)
    assert metrics_a["masked_share"] == metrics_b["masked_share"]  # the very same noise
  assert _worst(a.params, b.params) < 1e-5


def test_microbatches_draw_different_noise():
  """Equal rows in every microbatch are masked differently: no key is used twice."""
  seen = []

  def loss(lm, params, batch, key):
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, batch["example_id"])
    jax.debug.callback(lambda x: seen.append(np.array(x)), jax.random.key_data(keys))
    return toy.masked_loss(lm, params, batch, key)

  optimizer = _sgd()
  step = make_train_step(toy.LM, loss, optimizer, TrainStepConfig(accumulation=4))
  state = _state(optimizer)
  for i in range(2):
    state, _ = jax.jit(step)(state, toy.make_batch(i))
  jax.effects_barrier()
  keys = np.concatenate(seen)
  assert len(keys) == 2 * toy.B and len(np.unique(keys, axis=0)) == 2 * toy.B


def test_a_batch_without_targets_moves_nothing():
  optimizer = _sgd()
  state, batch = _state(optimizer), toy.make_batch(0)
  batch["weights"] = np.zeros_like(batch["weights"])
  new, metrics = _step(optimizer)(state, batch)
  assert _worst(new.params, state.params) == 0.0
  assert metrics["loss"] == (0.0, 0.0) and int(new.step) == 1


def test_moving_average_follows_its_formula_and_starts_at_the_parameters():
  optimizer = _sgd()
  state = _state(optimizer, ema=True)
  expected = state.params
  step = _step(optimizer, ema_decay=0.75)
  for i in range(3):
    state, _ = step(state, toy.make_batch(i))
    expected = jax.tree.map(lambda e, p: 0.75 * e + 0.25 * p, expected, state.params)
  assert _worst(state.ema_params, expected) < 1e-6
  assert _worst(state.ema_params, state.params) > 1e-3


def test_logged_learning_rate_and_tokens():
  optimizer = make_optimizer(OptimConfig(learning_rate=0.5, warmup_steps=3), 10)
  batch = toy.make_batch(0)
  batch["segment_ids"][:, -2:] = 0
  _, metrics = _step(optimizer)(_state(optimizer), batch)
  assert metrics["learning_rate"][0] == pytest.approx(0.5 / 4)
  assert metrics["tokens"][0] == toy.B * (toy.L - 2)


def test_evaluation_repeats_with_one_key_and_keeps_the_parameters():
  params = toy.LM.init(jax.random.key(0))
  step = jax.jit(make_eval_step(toy.LM, toy.masked_loss))
  first, again = (step(params, toy.make_batch(3), KEY) for _ in range(2))
  other = step(params, toy.make_batch(3), jax.random.key(6))
  assert first["loss"] == again["loss"] != other["loss"]
  total, weight, _ = toy.masked_loss(toy.LM, params, toy.make_batch(3), KEY)
  np.testing.assert_allclose(first["loss"], (total, weight), rtol=1e-6)
