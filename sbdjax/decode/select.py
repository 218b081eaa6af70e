"""Reveal rules: which masked positions to turn into tokens after a forward.

rule(logits_BxTxV, masked_BxT) -> reveal_BxT. At least one masked position of a row that has any
is revealed, never an unmasked one; equal scores are taken leftmost first. Confidence and entropy
are those of the raw softmax in float32, in nats, whatever temperature tokens are drawn at. The
caller has taken the mask token out of the logits.

`gamma`, `f` and `tau` may be traced scalars, so that one compilation serves a sweep.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from sbdjax.errors import UsageError

Rule = Callable[[jax.Array, jax.Array], jax.Array]
Score = Callable[[jax.Array], jax.Array]
# (logits [T, V], key [T], position [T]) -> score [T]: what positions are ranked by, largest first.
Order = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def confidence(logits: jax.Array) -> jax.Array:
  """Probability of the most probable token, [..., V] -> [...]."""
  return jnp.max(jax.nn.softmax(logits, axis=-1), axis=-1)


def margin(logits: jax.Array) -> jax.Array:
  """Probability of the first minus that of the second token, [..., V] -> [...]."""
  top = jax.lax.top_k(jax.nn.softmax(logits, axis=-1), 2)[0]
  return top[..., 0] - top[..., 1]


def entropy(logits: jax.Array) -> jax.Array:
  """Shannon entropy in nats, [..., V] -> [...]; never negative."""
  log_p = jax.nn.log_softmax(logits, axis=-1)
  return jnp.maximum(-jnp.sum(jnp.exp(log_p) * log_p, axis=-1), 0.0)


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
  """A uniformly random order: one number a position, the same whenever its key is."""
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


def _by_rank(score_BxT, masked_BxT, keep_ranked):
  """Applies `keep_ranked` to positions sorted by descending score, masked ones first.

  `keep_ranked(rank_T, gather)` gets the ranks and a function that sorts any [B, T] array
  likewise, and says which ranks to keep; the answer is put back in place.
  """
  key = jnp.where(masked_BxT, -score_BxT, jnp.inf)
  order = jnp.argsort(key, axis=-1, stable=True)
  keep = keep_ranked(
    jnp.arange(score_BxT.shape[-1]), lambda x: jnp.take_along_axis(x, order, axis=-1)
  )
  return jnp.take_along_axis(keep, jnp.argsort(order, axis=-1), axis=-1) & masked_BxT


def _at_least_one(passes_BxT, score_BxT, masked_BxT):
  """The masked positions that pass; where none does, the one with the highest score."""
  passes = passes_BxT & masked_BxT
  best = _by_rank(score_BxT, masked_BxT, lambda rank, gather: (rank == 0) & gather(masked_BxT))
  return jnp.where(jnp.any(passes, axis=-1, keepdims=True), passes, best)


def _check_not_negative(name, value):
  # Traced values cannot be looked at; the command line checks them before they are traced.
  if isinstance(value, (int, float)) and value < 0:
    raise UsageError(f"{name}={value} must not be negative")


def eb_entropy(gamma) -> Rule:
  """EB sampler, entropy proxy (SBD eq. 8).

  Positions sorted by entropy ascending; reveals the largest s >= 1 of them with
  H_1 + .. + H_{s-1} <= gamma. gamma = 0 reveals exactly one even where float32 entropies are 0.
  """
  _check_not_negative("gamma", gamma)

  def rule(logits, masked):
    h = entropy(logits)

    def keep(rank, gather):
      h_sorted = gather(jnp.where(masked, h, 0.0))
      before = jnp.cumsum(h_sorted, axis=-1) - h_sorted
      return (rank == 0) | ((before <= gamma) & (jnp.asarray(gamma) > 0))

    return _by_rank(-h, masked, keep)

  return rule


def _eb_inclusive(gamma, score: Score) -> Rule:
  """Sorted by `score`; the largest s >= 1 with sum_{j<=s} H_j - max_{j<=s} H_j <= gamma."""
  _check_not_negative("gamma", gamma)

  def rule(logits, masked):
    h = entropy(logits)

    def keep(rank, gather):
      h_sorted = gather(jnp.where(masked, h, 0.0))
      bound = jnp.cumsum(h_sorted, axis=-1) - jax.lax.cummax(h_sorted, axis=h_sorted.ndim - 1)
      # The bound never decreases with s, so this keeps a prefix.
      return (rank == 0) | ((bound <= gamma) & (jnp.asarray(gamma) > 0))

    return _by_rank(score(logits), masked, keep)

  return rule


def eb_confidence(gamma) -> Rule:
  """EB sampler, confidence proxy (SBD eq. 18)."""
  return _eb_inclusive(gamma, confidence)


def eb_margin(gamma) -> Rule:
  """EB sampler, the bound of eq. 18 over positions sorted by margin."""
  return _eb_inclusive(gamma, margin)


def factor(f) -> Rule:
  """Factor rule: by confidence descending, accept while c_n >= 1 - f / (n + 1), the first always.

  SBD prints (n + 1) c^n < f, which has the wrong direction for a confidence; the error form
  (n + 1)(1 - c_n) <= f of its source is meant. Stops at the first failure.
  """
  _check_not_negative("f", f)

  def rule(logits, masked):
    c = confidence(logits)

    def keep(rank, gather):
      holds = gather(c) >= 1 - f / (rank + 2)  # n = rank + 1
      return jnp.cumprod((holds | (rank == 0)).astype(jnp.int32), axis=-1).astype(bool)

    return _by_rank(c, masked, keep)

  return rule


def confidence_threshold(tau) -> Rule:
  """Every position with confidence >= tau; the most confident one where there is none."""

  def rule(logits, masked):
    c = confidence(logits)
    return _at_least_one(c >= tau, c, masked)

  return rule


def entropy_threshold(gamma) -> Rule:
  """Every position with entropy < gamma; the lowest one where there is none.

  A per-position reading of the entropy bound found in a review of SBD; it is not eq. 8.
  """
  _check_not_negative("gamma", gamma)

  def rule(logits, masked):
    h = entropy(logits)
    return _at_least_one(h < gamma, -h, masked)

  return rule


def top_k(n, score: Score = confidence) -> Rule:
  """The min(n, masked) positions of largest score: the static schedule of masked diffusion."""
  if isinstance(n, int) and n < 1:
    raise UsageError(f"tokens_per_step={n} must be at least 1")

  def rule(logits, masked):
    return _by_rank(
      score(logits), masked, lambda rank, gather: gather(masked) & (rank < jnp.maximum(n, 1))
    )

  return rule
