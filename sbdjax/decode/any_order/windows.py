"""Windows of self-speculative sampling: how many tokens a trunk pass may reveal (appendix D).

A window maps the number D of tokens of a text to W(i), int64 [D], for every number i of tokens that
are revealed already; 1 <= W(i) <= D - i. Computed once, in float64, when a sampler is built: at a
rounding of float32, W(i) can come out one too large or too small.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sbdjax.errors import UsageError

Window = Callable[[int], np.ndarray]


def _cut(window_D: np.ndarray) -> np.ndarray:
  left_D = len(window_D) - np.arange(len(window_D))
  return np.clip(window_D, 1, left_D).astype(np.int64)


def full() -> Window:
  """Everything that is left (Algorithm 2)."""
  return lambda length: length - np.arange(length)


def constant(size: int) -> Window:
  """`size` tokens a trunk pass."""
  if size < 1:
    raise UsageError(f"a window of {size} tokens reveals nothing: it must hold at least 1")
  return lambda length: _cut(np.full(length, size))


def cosine(dtau: float) -> Window:
  """The tokens that cosine-scheduled diffusion would reveal in a step of `dtau` (eq. 143 to 147).

  With a share cos(pi/2 (1 - tau)) of masks at time tau, W(i) = D - i - D cos(min(pi/2, arccos((D -
  i)/D) + pi dtau/2)). The paper rounds; that it rounds *up* follows from its own counts: without a
  rejection D = 256, dtau = 0.01 then takes the 80 trunk passes it reports.

  Args:
    dtau: in (0, 1]; about 1 / dtau trunk passes a text at least.
  """
  if not 0 < dtau <= 1:
    raise UsageError(f"dtau={dtau} is a share of the time from noise to text: it lies in (0, 1]")

  def window(length):
    left_D = length - np.arange(length, dtype=np.float64)
    angle_D = np.minimum(np.pi / 2, np.arccos(left_D / length) + np.pi * dtau / 2)
    return _cut(np.ceil(left_D - length * np.cos(angle_D) - 1e-9))

  return window


def linear(slope: float) -> Window:
  """max(1, ceil(slope * (i + 1))): it grows with what is known.

  The paper has a linear window too (eq. 142), whose formula its text does not give; this is ours.
  """
  if not slope > 0:
    raise UsageError(f"the slope {slope} of a linear window must be positive")
  return lambda length: _cut(np.ceil(slope * (np.arange(length) + 1) - 1e-9))


def table(window: Window, capacity: int) -> np.ndarray:
  """int32 [C + 1, C]: row D holds W of a text of D tokens, 1 behind it; for rows of any length."""
  out = np.ones((capacity + 1, capacity), np.int32)
  for length in range(1, capacity + 1):
    out[length, :length] = window(length)
  return out
