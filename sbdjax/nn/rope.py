"""Rotary position embedding, with the llama-3 rescaling of its frequencies."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sbdjax.errors import UsageError


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """The llama-3.1 frequency rescaling.

  Wavelengths below `original_max_position / high_freq_factor` are kept, those above
  `original_max_position / low_freq_factor` are stretched by `factor`, and those between are
  interpolated linearly in 1 / wavelength.

  Attributes:
    factor: by which long wavelengths are stretched.
    low_freq_factor: above original_max_position / this, a wavelength is long.
    high_freq_factor: below original_max_position / this, a wavelength is kept.
    original_max_position: positions the model was trained for before.
  """

  factor: float
  low_freq_factor: float
  high_freq_factor: float
  original_max_position: int

  def __post_init__(self) -> None:
    numbers = (self.factor, self.low_freq_factor, self.high_freq_factor, self.original_max_position)
    sound = all(math.isfinite(x) for x in numbers) and self.original_max_position > 0
    if not sound or not self.high_freq_factor > self.low_freq_factor > 0 or self.factor <= 0:
      raise UsageError(
        "rope_scaling needs factor > 0 and high_freq_factor > low_freq_factor > 0, got "
        f"{dataclasses.asdict(self)}"
      )


def frequencies(head_dim: int, theta: float, scaling: RopeScaling | None = None) -> np.ndarray:
  """Radians a position for each of the head_dim / 2 rotated pairs; float64, a constant."""
  freq = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
  if scaling is None:
    return freq
  wavelength = 2 * math.pi / freq
  smooth = (scaling.original_max_position / wavelength - scaling.low_freq_factor) / (
    scaling.high_freq_factor - scaling.low_freq_factor
  )
  smooth = np.clip(smooth, 0.0, 1.0)
  return (1 - smooth) * freq / scaling.factor + smooth * freq


def frequencies_of(config: Any) -> np.ndarray:
  """Those of a TransformerConfig: its own where it lists them, else those of its theta."""
  if config.rope_frequencies is not None:
    return np.asarray(config.rope_frequencies)
  return frequencies(config.head_dim, config.rope_theta, config.rope_scaling)


def rotation(positions_BxT: jax.Array, freq: np.ndarray) -> tuple[jax.Array, jax.Array]:
  """(cos, sin), float32 [B, 1, T, head_dim / 2], shared by all layers."""
  angle = positions_BxT[:, None, :, None].astype(jnp.float32) * jnp.asarray(freq, jnp.float32)
  return jnp.cos(angle), jnp.sin(angle)


def rotate(
  x_BxHxTxDh: jax.Array, cos_sin: tuple[jax.Array, jax.Array], interleaved: bool
) -> jax.Array:
  """Rotates pairs of channels: (2i, 2i+1) if `interleaved`, else (i, i + Dh/2)."""
  cos, sin = cos_sin
  x = x_BxHxTxDh.astype(jnp.float32)
  if interleaved:
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    out = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)
  else:
    a, b = jnp.split(x, 2, axis=-1)
    out = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
  return out.astype(x_BxHxTxDh.dtype)


def to_half_pairs(x: np.ndarray) -> np.ndarray:
  """Reorders the last axis of q or k weights from interleaved pairs to (i, i + Dh/2).

  Scores are sums over channels, so the same order in q and k leaves them as they are.
  """
  return np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)


def to_interleaved_pairs(x: np.ndarray) -> np.ndarray:
  """The inverse of `to_half_pairs`: from pairs (i, i + Dh/2) to (2i, 2i+1)."""
  first, second = np.split(x, 2, axis=-1)
  return np.stack([first, second], axis=-1).reshape(x.shape)
