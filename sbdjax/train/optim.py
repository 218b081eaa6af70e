"""AdamW with global-norm clipping and learning-rate schedules, from one frozen config."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

from sbdjax.errors import UsageError
from sbdjax.train.state import map_with_names

# Leaves that weight decay leaves alone: norms and biases. Layers are stacked, so a per-layer
# vector has two axes here and only its name tells it from a matrix.
_NO_DECAY = re.compile(r"(^|[/_])(scale|bias)$")


def _constant(config: OptimConfig, steps: int) -> optax.Schedule:
  del steps
  return optax.constant_schedule(config.learning_rate)


def _cosine(config: OptimConfig, steps: int) -> optax.Schedule:
  return optax.cosine_decay_schedule(config.learning_rate, steps, config.final_fraction)


def _linear(config: OptimConfig, steps: int) -> optax.Schedule:
  final = config.learning_rate * config.final_fraction
  return optax.linear_schedule(config.learning_rate, final, steps)


SCHEDULES: dict[str, Callable[[OptimConfig, int], optax.Schedule]] = {
  "constant": _constant,
  "cosine": _cosine,
  "linear": _linear,
}


@dataclasses.dataclass(frozen=True)
class OptimConfig:
  """AdamW (Loshchilov & Hutter 2019, decoupled decay scaled by the learning rate).

  Attributes:
    learning_rate: peak, reached after the warm-up.
    schedule: what follows the warm-up: "constant", or "cosine" / "linear" down to
      `final_fraction * learning_rate` at the last step.
    warmup_steps: updates of linear warm-up; the first update already moves.
    final_fraction: see `schedule`.
    b1, b2, eps: Adam's moments and the term in its denominator.
    weight_decay: of matrices and embeddings; norms and biases are never decayed.
    clip_norm: largest global gradient norm; 0 switches clipping off.
  """

  learning_rate: float = 1e-3
  schedule: str = "cosine"
  warmup_steps: int = 0
  final_fraction: float = 0.1
  b1: float = 0.9
  b2: float = 0.95
  eps: float = 1e-8
  weight_decay: float = 0.1
  clip_norm: float = 1.0

  def __post_init__(self):
    if self.schedule not in SCHEDULES:
      raise UsageError(f"optim.schedule={self.schedule!r}: choose one of {tuple(SCHEDULES)}")
    if self.learning_rate <= 0:
      raise UsageError(f"optim.learning_rate must be positive, got {self.learning_rate}")
    for name in ("warmup_steps", "final_fraction", "weight_decay", "clip_norm"):
      if getattr(self, name) < 0:
        raise UsageError(f"optim.{name} must not be negative, got {getattr(self, name)}")
    for name in ("b1", "b2"):
      if not 0 <= getattr(self, name) < 1:
        raise UsageError(f"optim.{name} must lie in [0, 1), got {getattr(self, name)}")


class Optimizer(NamedTuple):
  """An optax transformation and the learning rate it uses at each step, for the log."""

  tx: optax.GradientTransformation
  learning_rate: Callable[[jax.Array], jax.Array]


def make_schedule(config: OptimConfig, steps: int) -> optax.Schedule:
  """step -> learning rate of that update (the first is step 0), over a run of `steps` updates."""
  warmup = config.warmup_steps
  if warmup >= steps and warmup:
    raise UsageError(f"optim.warmup_steps={warmup} must be smaller than train.steps={steps}")
  after = SCHEDULES[config.schedule](config, steps - warmup)
  if not warmup:
    return after
  peak = config.learning_rate
  # From peak / (w + 1), not 0: an update with learning rate 0 would be wasted.
  rise = optax.linear_schedule(peak / (warmup + 1), peak, warmup)
  return optax.join_schedules([rise, after], [warmup])


def decay_mask(params: Any) -> Any:
  """True for the leaves that weight decay shrinks, in the structure of `params`."""
  return map_with_names(lambda name, _: not _NO_DECAY.search(name), params)


def make_optimizer(config: OptimConfig, steps: int) -> Optimizer:
  """Clipping (if on), then AdamW, for a run of `steps` updates.

  Raises:
    UsageError: the warm-up does not fit into `steps`.
  """
  schedule = make_schedule(config, steps)
  adamw = optax.adamw(
    schedule,
    b1=config.b1,
    b2=config.b2,
    eps=config.eps,
    weight_decay=config.weight_decay,
    mask=decay_mask,
  )
  clip = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
  return Optimizer(optax.chain(*clip, adamw), schedule)
