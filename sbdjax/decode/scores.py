"""Scores of predictions, and the orders that positions are revealed in.

A score is a number per position, larger for surer predictions, of the raw softmax in float32. An
order may also look at noise or at the position.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import jax
import jax.numpy as jnp

from sbdjax import reductions
from sbdjax.errors import UsageError
from sbdjax.settings import nearest

# logits [..., V] -> score [...]
Score = Callable[[jax.Array], jax.Array]
# (logits [T, V], key [T], position [T]) -> score [T]: what positions are ranked by, largest first.
Order = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def confidence(logits: jax.Array) -> jax.Array:
  """Probability of the most probable token, [..., V] -> [...]."""
  return reductions.max_probability(logits)


def margin(logits: jax.Array) -> jax.Array:
  """Probability of the first minus that of the second token, [..., V] -> [...]."""
  return reductions.margin(logits)


def entropy(logits: jax.Array) -> jax.Array:
  """Shannon entropy in nats, [..., V] -> [...]; never negative."""
  return reductions.entropy(logits)


def negative_entropy(logits: jax.Array) -> jax.Array:
  """-entropy, so that larger is surer like the other scores."""
  return -entropy(logits)


SCORES: dict[str, Score] = {
  "confidence": confidence,
  "margin": margin,
  "entropy": negative_entropy,
}


def by_score(score: Score) -> Order:
  """Ranks by a score of the logits alone."""
  return lambda logits, key_T, position_T: score(logits)


def random_order(logits: jax.Array, key_T: jax.Array, position_T: jax.Array) -> jax.Array:
  """A uniformly random order: one number per position, the same whenever its key is."""
  del logits, position_T
  return jax.vmap(jax.random.uniform)(key_T)


def left_to_right(logits: jax.Array, key_T: jax.Array, position_T: jax.Array) -> jax.Array:
  """The leftmost position first."""
  del logits, key_T
  return -position_T.astype(jnp.float32)


ORDERS: dict[str, Order] = {name: by_score(score) for name, score in SCORES.items()} | {
  "random": random_order,
  "left_to_right": left_to_right,
}


def check_score(name: str) -> None:
  """Raises UsageError where `name` is not a key of SCORES."""
  if name in ORDERS and name not in SCORES:
    raise UsageError(
      f"score={name} is an order, not a score of the prediction: choose one of {', '.join(SCORES)}"
    )
  _check_name(name, SCORES)


def check_order(name: str) -> None:
  """Raises UsageError where `name` is not a key of ORDERS."""
  _check_name(name, ORDERS)


def _check_name(name: str, known: Collection[str]) -> None:
  if name not in known:
    raise UsageError(f"score={name!r}{nearest(name, known)}: choose one of {', '.join(known)}")
