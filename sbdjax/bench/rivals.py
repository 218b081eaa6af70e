"""What computes attention, by name: our backends, and those of others to compare them with.

All are told the same mask. `xla_dense` and `cudnn_dense` get it as a matrix, and multiply all of
it; `cudnn` is not told: it is causal over as many tokens, and only measured where that is the mask.
tokamax gets a matrix as well. PyTorch's FlexAttention is in `flex`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax

from sbdjax import masks
from sbdjax.kernels import backend

_GPU = ("gpu", "cuda")


class Rival(NamedTuple):
  """A way to compute attention.

  Attributes:
    plan: (mask, T, S) -> what `attend` is told of the mask; made once per forward, and not timed with
      attention.
    attend: (q, k, v, plan) -> o, arrays [B, heads, T, Dh], or [B, T, heads, Dh] with `time_major`.
    time_major: the layout of its arrays.
    missing: platform -> why it cannot be had there, or "".
    knows: name of a case -> whether it is meant for that mask.
  """

  plan: Callable[[masks.Mask, int, int], Any]
  attend: Callable[..., jax.Array]
  time_major: bool = False
  missing: Callable[[str], str] = lambda platform: ""
  knows: Callable[[str], bool] = lambda case: True


def _only(*platforms: str) -> Callable[[str], str]:
  return lambda platform: "" if platform in platforms else f"not for {platform}"


def _ours(name: str, missing: Callable[[str], str] = lambda platform: "") -> Rival:
  return Rival(
    lambda *mask: backend.get(name).plan(*mask),
    lambda q, k, v, plan: backend.get(name).attend(q, (k,), (v,), plan),
    missing=missing,
  )


def _matrix(mask: masks.Mask, num_queries: int, num_keys: int) -> jax.Array:
  return masks.dense(mask, num_queries, num_keys)[:, None]


def _dense(implementation: Literal["xla", "cudnn"]) -> Callable:
  return lambda q, k, v, matrix: jax.nn.dot_product_attention(
    q, k, v, mask=matrix, implementation=implementation
  )


def _tokamax(q: jax.Array, k: jax.Array, v: jax.Array, matrix: jax.Array) -> jax.Array:
  import tokamax

  return tokamax.dot_product_attention(q, k, v, mask=matrix)


def _needs_tokamax(platform: str) -> str:
  del platform
  return "" if importlib.util.find_spec("tokamax") else "tokamax is not installed"


RIVALS: dict[str, Rival] = {
  "xla": _ours("xla"),
  "pallas_tpu": _ours("pallas_tpu", _only("tpu")),
  "pallas_gpu": _ours("pallas_gpu", _only(*_GPU)),
  "xla_dense": Rival(_matrix, _dense("xla"), time_major=True),
  "cudnn": Rival(
    lambda mask, num_queries, num_keys: None,
    lambda q, k, v, plan: jax.nn.dot_product_attention(
      q, k, v, is_causal=True, implementation="cudnn"
    ),
    time_major=True,
    missing=_only(*_GPU),
    knows=lambda case: case == "causal",
  ),
  "cudnn_dense": Rival(_matrix, _dense("cudnn"), time_major=True, missing=_only(*_GPU)),
  "tokamax": Rival(_matrix, _tokamax, time_major=True, missing=_needs_tokamax),
}


def present(platform: str) -> tuple[dict[str, Rival], dict[str, str]]:
  """Those that can be had on a platform, and why not for the others."""
  reasons = {name: rival.missing(platform) for name, rival in RIVALS.items()}
  there = {name: rival for name, rival in RIVALS.items() if not reasons[name]}
  return there, {name: reason for name, reason in reasons.items() if reason}
