"""A reveal rule: every place that is nearly as sure as the surest one."""

import jax
import jax.numpy as jnp

from sbdjax import pytree
from sbdjax.decode import Rule


@pytree.dataclass
class Relative(Rule):
  """Reveals the masked places with a confidence of at least `share` times the largest one.

  Attributes:
    share: in [0, 1]; 1: the surest place alone, and places as sure as it.
  """

  share: float = 0.9

  def __post_init__(self) -> None:
    pytree.check(0 <= self.share <= 1, f"share={self.share} must lie in [0, 1]")

  def __call__(self, logits_BxTxV: jax.Array, masked_BxT: jax.Array) -> jax.Array:
    confidence_BxT = jnp.max(jax.nn.softmax(logits_BxTxV), axis=-1)
    confidence_BxT = jnp.where(masked_BxT, confidence_BxT, 0.0)
    best_Bx1 = jnp.max(confidence_BxT, axis=-1, keepdims=True)
    return masked_BxT & (confidence_BxT >= self.share * best_Bx1)
