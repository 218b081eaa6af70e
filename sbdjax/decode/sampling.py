"""Token choice: logits -> token, as small functions with their settings in closures."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from sbdjax.errors import UsageError

# (key, float32 logits [..., V]) -> int32 tokens [...]
Choose = Callable[[jax.Array, jax.Array], jax.Array]


def greedy() -> Choose:
  """The most probable token; the lowest id on ties."""

  def choose(key, logits):
    del key
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)

  return choose


def categorical(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Choose:
  """A draw from softmax(logits / temperature), cut to `top_k` tokens, then to mass `top_p`.

  `top_k` = 0 and `top_p` = 1 cut nothing. Draws use Gumbel noise of high dynamic range: the plain
  float32 kind cannot reach the tail of a large vocabulary, which lowers the true temperature.

  Raises:
    UsageError: temperature <= 0, top_k < 0 or top_p outside (0, 1].
  """
  if temperature <= 0:
    raise UsageError(f"temperature={temperature} must be positive (0 means greedy decoding)")
  if top_k < 0 or not 0 < top_p <= 1:
    raise UsageError(f"top_k={top_k} must be >= 0 and top_p={top_p} in (0, 1]")

  warp = warped(temperature, top_k, top_p)

  def choose(key, logits):
    return jax.random.categorical(key, warp(logits), axis=-1, mode="high").astype(jnp.int32)

  return choose


def warped(
  temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> Callable[[jax.Array], jax.Array]:
  """logits [..., V] -> the logits `categorical` of these settings draws from, -inf where cut."""
  return lambda logits: nucleus(limit_top_k(logits / temperature, top_k), top_p)


def make_choice(temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0) -> Choose:
  """`greedy()` at temperature 0, else `categorical(...)`."""
  return greedy() if temperature == 0 else categorical(temperature, top_k, top_p)


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
