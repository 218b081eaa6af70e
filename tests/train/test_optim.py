"""Schedules against their formulas, AdamW against numpy, and what decay leaves alone."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax.errors import UsageError
from sbdjax.lm import make_lm
from sbdjax.nn.transformer import TransformerConfig
from sbdjax.train.optim import OptimConfig, decay_mask, make_optimizer, make_schedule
from sbdjax.train.state import leaf_names


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
  learning_rate = make_schedule(config, 20)
  for step in range(21):
    np.testing.assert_allclose(learning_rate(step), _expected(schedule, step), rtol=1e-5)


def test_the_first_update_moves_and_warmup_must_fit():
  assert make_schedule(OptimConfig(warmup_steps=10), 20)(0) > 0
  with pytest.raises(UsageError, match="warmup_steps=20.*train.steps=20"):
    make_schedule(OptimConfig(warmup_steps=20), 20)


def test_clipped_adamw_matches_numpy():
  config = OptimConfig(
    learning_rate=0.1, schedule="constant", weight_decay=0.5, clip_norm=1.0, b1=0.9, b2=0.95
  )
  tx = make_optimizer(config, 10).tx
  params = {"kernel": jnp.array([1.0, -2.0]), "bias": jnp.array([3.0])}
  state = tx.init(params)
  expected = {k: np.array(v, np.float64) for k, v in params.items()}
  m = {k: np.zeros_like(v) for k, v in expected.items()}
  v = {k: np.zeros_like(x) for k, x in expected.items()}
  for t in range(1, 4):
    grads = {"kernel": jnp.array([0.3 * t, 4.0]), "bias": jnp.array([-1.0])}
    updates, state = tx.update(grads, state, params)
    params = jax.tree.map(jnp.add, params, updates)
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
