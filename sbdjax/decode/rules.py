"""Reveal rules: which masked positions to turn into tokens after a forward.

rule(logits_BxTxV, masked_BxT) -> reveal_BxT. At least one masked position of a row that has any
is revealed, never an unmasked one; equal scores are taken leftmost first. Confidence and entropy
are those of the raw softmax in float32, in nats, whatever temperature tokens are drawn at. The
model has taken the mask token out of the logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp

from sbdjax import pytree
from sbdjax.decode.method import Part
from sbdjax.decode.scores import SCORES, Score, check_score, confidence, entropy, margin


class Rule(Part):
  """Base of reveal rules."""

  kind: ClassVar[str] = "rule"

  def __call__(self, logits_BxTxV: jax.Array, masked_BxT: jax.Array) -> jax.Array:
    """Chooses what to reveal.

    Args:
      logits_BxTxV: float32, the predictions of a forward.
      masked_BxT: bool, which positions are masks.

    Returns:
      bool [B, T], true where the predicted token is kept.
    """
    raise NotImplementedError


def _by_rank(
  score_BxT: jax.Array, masked_BxT: jax.Array, keep_ranked: Callable[..., jax.Array]
) -> jax.Array:
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


def _at_least_one(passes_BxT: jax.Array, score_BxT: jax.Array, masked_BxT: jax.Array) -> jax.Array:
  """The masked positions that pass; where none does, the one with the highest score."""
  passes = passes_BxT & masked_BxT
  best = _by_rank(score_BxT, masked_BxT, lambda rank, gather: (rank == 0) & gather(masked_BxT))
  return jnp.where(jnp.any(passes, axis=-1, keepdims=True), passes, best)


def _check_not_negative(name: str, value: float) -> None:
  pytree.check(value >= 0, f"{name}={value} must not be negative")


@pytree.dataclass
class EntropyBounded(Rule):
  """Base of the rules with a bound on entropies.

  Attributes:
    gamma: the bound in nats, at least 0.

  Raises:
    UsageError: gamma < 0.
  """

  gamma: float = 0.1

  def __post_init__(self) -> None:
    _check_not_negative("gamma", self.gamma)


@pytree.dataclass
class EBEntropy(EntropyBounded):
  """EB sampler, entropy proxy (SBD eq. 8).

  Positions sorted by entropy ascending; reveals the largest s >= 1 of them with
  H_1 + .. + H_{s-1} <= gamma. gamma = 0 reveals exactly one even where float32 entropies are 0.
  """

  def __call__(self, logits_BxTxV: jax.Array, masked_BxT: jax.Array) -> jax.Array:
    h = entropy(logits_BxTxV)

    def keep(rank, gather):
      h_sorted = gather(jnp.where(masked_BxT, h, 0.0))
      before = jnp.cumsum(h_sorted, axis=-1) - h_sorted
      return (rank == 0) | ((before <= self.gamma) & (jnp.asarray(self.gamma) > 0))

    return _by_rank(-h, masked_BxT, keep)


def _eb_inclusive(gamma: float, score: Score, logits: jax.Array, masked: jax.Array) -> jax.Array:
  """Sorted by `score`; the largest s >= 1 with sum_{j<=s} H_j - max_{j<=s} H_j <= gamma."""
  h = entropy(logits)

  def keep(rank, gather):
    h_sorted = gather(jnp.where(masked, h, 0.0))
    bound = jnp.cumsum(h_sorted, axis=-1) - jax.lax.cummax(h_sorted, axis=h_sorted.ndim - 1)
    # The bound never decreases with s, so this keeps a prefix.
    return (rank == 0) | ((bound <= gamma) & (jnp.asarray(gamma) > 0))

  return _by_rank(score(logits), masked, keep)


@pytree.dataclass
class EBConfidence(EntropyBounded):
  """EB sampler, confidence proxy (SBD eq. 18)."""

  def __call__(self, logits_BxTxV: jax.Array, masked_BxT: jax.Array) -> jax.Array:
    return _eb_inclusive(self.gamma, confidence, logits_BxTxV, masked_BxT)


@pytree.dataclass
class EBMargin(EntropyBounded):
  """EB sampler, the bound of SBD eq. 18 over positions sorted by margin."""

  def __call__(self, logits_BxTxV: jax.Array, masked_BxT: jax.Array) -> jax.Array:
    return _eb_inclusive(self.gamma, margin, logits_BxTxV, masked_BxT)


@pytree.dataclass
class Factor(Rule):
  """Factor rule: by confidence descending, accept while c_n >= 1 - f / (n + 1), the first always.

  SBD prints (n + 1) c^n < f, which has the wrong direction for a confidence; the error form
  (n + 1)(1 - c_n) <= f of its source is meant. Stops at the first failure.

  Attributes:
    f: at least 0.
  """

  f: float = 1.0

  def __post_init__(self) -> None:
    _check_not_negative("f", self.f)

  def __call__(self, logits_BxTxV: jax.Array, masked_BxT: jax.Array) -> jax.Array:
    c = confidence(logits_BxTxV)

    def keep(rank, gather):
      holds = gather(c) >= 1 - self.f / (rank + 2)  # n = rank + 1
      return jnp.cumprod((holds | (rank == 0)).astype(jnp.int32), axis=-1).astype(bool)

    return _by_rank(c, masked_BxT, keep)


@pytree.dataclass
class ConfidenceThreshold(Rule):
  """Every position with confidence >= tau; the most confident one where there is none.

  Attributes:
    tau: smallest confidence, at least 0.
  """

  tau: float = 0.9

  def __post_init__(self) -> None:
    _check_not_negative("tau", self.tau)

  def __call__(self, logits_BxTxV: jax.Array, masked_BxT: jax.Array) -> jax.Array:
    c = confidence(logits_BxTxV)
    return _at_least_one(c >= self.tau, c, masked_BxT)


@pytree.dataclass
class EntropyThreshold(EntropyBounded):
  """Every position with entropy < gamma; the lowest one where there is none.

  A per-position reading of the entropy bound found in a review of SBD; it is not eq. 8.
  """

  def __call__(self, logits_BxTxV: jax.Array, masked_BxT: jax.Array) -> jax.Array:
    h = entropy(logits_BxTxV)
    return _at_least_one(h < self.gamma, -h, masked_BxT)


@pytree.dataclass
class TopK(Rule):
  """The min(n, masked) positions of largest score: the static schedule of masked diffusion.

  Attributes:
    tokens_per_step: n, at least 1.
    score: what positions are sorted by, a key of `scores.SCORES`.
  """

  tokens_per_step: int = 1
  score: str = pytree.static(default="confidence")

  def __post_init__(self) -> None:
    n = self.tokens_per_step
    pytree.check(n >= 1, f"tokens_per_step={n} must be at least 1")
    check_score(self.score)

  def __call__(self, logits_BxTxV: jax.Array, masked_BxT: jax.Array) -> jax.Array:
    return _by_rank(
      SCORES[self.score](logits_BxTxV),
      masked_BxT,
      lambda rank, gather: gather(masked_BxT) & (rank < jnp.maximum(self.tokens_per_step, 1)),
    )
