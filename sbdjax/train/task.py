"""What is trained on what, how long, and in which rhythm."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from sbdjax.errors import UsageError
from sbdjax.losses.base import LossFn
from sbdjax.train.step import TrainStepConfig
from sbdjax.train.tracking.samples import Sampler


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """Length and rhythm of a run.

  Attributes:
    steps: updates.
    batch_size: examples per update, over all devices and microbatches, which may not divide it: what
      is missing is empty.
    accumulation: microbatches an update is split into.
    ema_decay: of the parameters' moving average; 0 switches it off.
    seed: of initialisation, noise and data order.
    log_every: updates a logged average is taken over.
    eval_every: updates between evaluations; 0: none.
    eval_batches: batches of an evaluation; 0: the whole split.
    checkpoint_every: updates between checkpoints; 0: only one at the end.
    max_to_keep: newest checkpoints kept.
    keep_best: also keep the checkpoint with the lowest evaluation loss, among those made at a step
      with an evaluation.
  """

  steps: int
  batch_size: int
  accumulation: int = 1
  ema_decay: float = 0.0
  seed: int = 0
  log_every: int = 20
  eval_every: int = 0
  eval_batches: int = 16
  checkpoint_every: int = 500
  max_to_keep: int = 2
  keep_best: bool = False

  def __post_init__(self) -> None:
    for name in ("steps", "batch_size", "log_every", "max_to_keep"):
      if getattr(self, name) < 1:
        raise UsageError(f"train.{name} must be at least 1, got {getattr(self, name)}")
    for name in ("seed", "eval_every", "eval_batches", "checkpoint_every"):
      if getattr(self, name) < 0:
        raise UsageError(f"train.{name} must not be negative, got {getattr(self, name)}")
    if self.accumulation > self.batch_size:
      raise UsageError(
        f"train.accumulation={self.accumulation} makes more microbatches than train.batch_size="
        f"{self.batch_size} has examples: lower it"
      )
    if self.keep_best and not self.eval_every:
      raise UsageError("train.keep_best needs evaluations: set train.eval_every")
    TrainStepConfig(self.accumulation, self.ema_decay)


class Batches(Protocol):
  """Endless training batches with a position."""

  def __next__(self) -> dict[str, Any]: ...

  def get_state(self) -> Any: ...

  def set_state(self, state: Any) -> None: ...


class Task(NamedTuple):
  """What is trained on what.

  Attributes:
    lm: the model; `lm.init` is used where `params` is None.
    loss_fn: (lm, params, batch, key) -> (loss_sum, weight, metrics).
    teacher: parameters that `loss_fn` is called with as well, see `Loss.distils`; or None.
    batches: training batches.
    eval_batches: iterated from the start at each evaluation, or None.
    params: parameters to start from, or None.
    eval_loss_fn: what evaluations measure, or None for `loss_fn`.
    in_bits: {metric in nats a token: name} of metrics that are also written in bits; only where
      tokens are characters.
    sampler: decodes texts with the parameters of the moment, or None.
  """

  lm: Any
  loss_fn: LossFn
  batches: Batches
  eval_batches: Iterable[dict[str, Any]] | None = None
  params: Any = None
  eval_loss_fn: LossFn | None = None
  in_bits: Mapping[str, str] = {}
  sampler: Sampler | None = None
  teacher: Any = None
