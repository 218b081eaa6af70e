"""Token choice: logits -> token. The objects are the settings and the callables."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp

from sbdjax import pytree, reductions
from sbdjax.decode.method import Part


class TokenSampler(Part):
  """Base of token samplers."""

  kind: ClassVar[str] = "token"
  draws: ClassVar[bool] = True  # a choice depends on the key

  def __call__(self, key: jax.Array, logits: jax.Array) -> jax.Array:
    """Takes tokens.

    Args:
      key: one typed key.
      logits: float32 [..., V].

    Returns:
      int32 [...].
    """
    raise NotImplementedError

  def log_probs(self, logits: jax.Array) -> jax.Array:
    """Log-probabilities [..., V] that tokens are taken with, -inf for those never taken."""
    raise NotImplementedError


@pytree.dataclass
class Greedy(TokenSampler):
  """The most probable token; the lowest id on ties."""

  draws: ClassVar[bool] = False

  def __call__(self, key: jax.Array, logits: jax.Array) -> jax.Array:
    del key
    return reductions.argmax(logits)

  def log_probs(self, logits: jax.Array) -> jax.Array:
    best = reductions.argmax(logits)[..., None]
    return jnp.where(jnp.arange(logits.shape[-1]) == best, 0.0, -jnp.inf)


@pytree.dataclass
class Categorical(TokenSampler):
  """A draw from softmax(logits / temperature), cut to `top_k` tokens, then to mass `top_p`.

  Draws use Gumbel noise of high dynamic range: the plain float32 kind cannot reach the tail of a
  large vocabulary, which lowers the true temperature (Zheng et al. 2024, arXiv:2409.02908).

  Attributes:
    temperature: above 0; `Greedy()` is its limit at 0.
    top_k: draw from the `top_k` most probable tokens only; 0: from all.
    top_p: draw from the smallest set of tokens with this mass; 1: from all.

  Raises:
    UsageError: temperature <= 0, top_k < 0 or top_p outside (0, 1].
  """

  temperature: float = 1.0
  top_k: int = pytree.static(default=0)
  top_p: float = pytree.static(default=1.0)

  def __post_init__(self) -> None:
    pytree.check(
      self.temperature > 0,
      f"temperature={self.temperature} must be positive (0 means greedy decoding)",
    )
    pytree.check(
      self.top_k >= 0 and 0 < self.top_p <= 1,
      f"top_k={self.top_k} must be >= 0 and top_p={self.top_p} in (0, 1]",
    )

  def warp(self, logits: jax.Array) -> jax.Array:
    """The logits [..., V] that tokens are drawn from, -inf where cut."""
    return nucleus(limit_top_k(logits / self.temperature, self.top_k), self.top_p)

  def __call__(self, key: jax.Array, logits: jax.Array) -> jax.Array:
    return draw(key, self.warp(logits))

  def log_probs(self, logits: jax.Array) -> jax.Array:
    return jax.nn.log_softmax(self.warp(logits), axis=-1)


def draw(key: jax.Array, logits: jax.Array) -> jax.Array:
  """A token from softmax(logits), int32 [...]: `jax.random.categorical(..., mode="high")`."""
  noise = jax.random.gumbel(key, logits.shape, logits.dtype, mode="high")
  return reductions.argmax(noise + logits)


def token_sampler(temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0) -> TokenSampler:
  """`Greedy()` at temperature 0, else `Categorical(...)`."""
  return Greedy() if temperature == 0 else Categorical(temperature, top_k, top_p)


def limit_top_k(logits: jax.Array, top_k: int) -> jax.Array:
  """-inf outside the `top_k` largest logits (ties at the border are kept); 0: unchanged."""
  if not top_k or top_k >= logits.shape[-1]:
    return logits
  kth = jax.lax.top_k(logits, top_k)[0][..., -1:]
  return jnp.where(logits >= kth, logits, -jnp.inf)


def nucleus(logits: jax.Array, top_p: float) -> jax.Array:
  """-inf outside the smallest set of most probable tokens whose mass reaches `top_p`."""
  if top_p >= 1:
    return logits
  order = jnp.argsort(-logits, axis=-1, stable=True)
  probs = jax.nn.softmax(jnp.take_along_axis(logits, order, axis=-1), axis=-1)
  before = jnp.cumsum(probs, axis=-1) - probs
  keep = jnp.take_along_axis(before < top_p, jnp.argsort(order, axis=-1), axis=-1)
  return jnp.where(keep, logits, -jnp.inf)
