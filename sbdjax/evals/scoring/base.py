"""What a scorer says, and how it found it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from sbdjax.evals.scoring.requests import TokenRequest
from sbdjax.evals.tasks.task import Scored

__all__ = ["Estimator", "Scored", "Scorer"]


@dataclasses.dataclass(frozen=True)
class Estimator:
  """How log-likelihoods were found.

  Attributes:
    name: "exact", or what was averaged: a bound from below.
    samples: orders or noises drawn for each text; 1 where nothing is drawn.
    seed: of the draws; None where nothing is drawn.
  """

  name: str
  samples: int = 1
  seed: int | None = None

  def __str__(self) -> str:
    if self.seed is None:
      return self.name
    return f"{self.name}, {self.samples} samples, seed {self.seed}"


class Scorer(Protocol):
  """A model that scores continuations.

  Attributes:
    estimator: how.
    max_tokens: of a context and its continuation; what is longer loses its beginning.
    window: tokens that are predicted at most where one stands before them.
    needs_context: a text cannot be scored with nothing before it.
  """

  estimator: Estimator
  max_tokens: int
  window: int
  needs_context: bool

  def __call__(self, groups: Sequence[Sequence[TokenRequest]]) -> list[list[Scored]]: ...
