"""Scores of predictions against published values, and the orders that use them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax.decode import scores
from sbdjax.errors import UsageError
from sbdjax.lm import suppress
from tests.helpers import golden_file
from tests.reference import network


@pytest.mark.parametrize("group", ["main", "long", "ties"])
def test_published_scores(group):
  data = np.load(golden_file("unmasking_A.npz"))
  logits = jnp.asarray(data[f"{group}/logits"])
  for name in ("confidence", "margin", "entropy"):
    ours = getattr(scores, name)(logits)
    np.testing.assert_allclose(ours, data[f"{group}/{name}"], atol=2e-6, err_msg=name)


def test_the_mask_token_left_out_by_the_model_does_not_disturb_scores():
  logits = np.array([[[0.0, 1.0, 2.0, 9.0]]], np.float32)
  left_out, plain = suppress(jnp.asarray(logits), 3), jnp.asarray(logits[..., :3])
  for score in scores.SCORES.values():
    np.testing.assert_allclose(score(left_out), score(plain), rtol=1e-6)
  assert float(scores.entropy(jnp.asarray([[200.0, 0.0, -1e30]]))[0]) == 0.0


def test_larger_scores_are_surer():
  """Three predictions, from certain to flat: every score sorts them so."""
  logits = jnp.asarray([[9.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
  keys, positions = jax.random.split(jax.random.key(0), 3), jnp.arange(3)
  for name, score in scores.SCORES.items():
    np.testing.assert_array_equal(np.argsort(-score(logits)), [0, 1, 2], err_msg=name)
    order = scores.ORDERS[name](logits, keys, positions)
    np.testing.assert_array_equal(order, score(logits), err_msg=name)
  probs = network.softmax(np.asarray(logits, np.float64))
  np.testing.assert_allclose(scores.confidence(logits), probs.max(-1), rtol=1e-6)


def test_orders_that_do_not_look_at_the_prediction():
  logits, positions = jnp.zeros((50, 3)), jnp.arange(7, 57)
  keys = jax.random.split(jax.random.key(0), 50)
  left = scores.left_to_right(logits, keys, positions)
  np.testing.assert_array_equal(np.argsort(-left), np.arange(50))
  once, again = (scores.random_order(logits, keys, positions) for _ in range(2))
  np.testing.assert_array_equal(once, again)
  assert len(np.unique(once)) == 50 and (np.argsort(-once) != np.arange(50)).any()
  # A number belongs to its key, whatever stands beside it.
  np.testing.assert_array_equal(scores.random_order(logits[:9], keys[:9], positions[:9]), once[:9])


def test_an_order_is_no_score():
  scores.check_score("margin")
  scores.check_order("random")
  with pytest.raises(UsageError, match="score=random is an order"):
    scores.check_score("random")
  for check in (scores.check_score, scores.check_order):
    with pytest.raises(UsageError, match="choose one of confidence"):
      check("certainty")
