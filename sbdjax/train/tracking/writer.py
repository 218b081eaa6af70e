"""What a writer is: an object that is told of a run's numbers and samples.

A writer of one's own derives from `Writer` and is named in a config as
`tracking.writers=("tensorboard", "my_lab.writers:MyWriter")`. It lives in the first process alone. It is made
after the settings have been found usable, told of everything in order of steps, flushed before each
checkpoint, and closed at the end, also after an error. A run that was killed resumes from a checkpoint:
what lies beyond `run.step` is then told again.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sbdjax.train.tracking.config import TrackingConfig


class Run(NamedTuple):
  """What a writer may know of the run.

  Attributes:
    workdir: its directory, which exists.
    step: updates done before; 0 for a new run.
    config: every setting, JSON-like: what is kept in config.json.
    tracking: that section as a dataclass.
  """

  workdir: pathlib.Path
  step: int
  config: Mapping[str, Any]
  tracking: TrackingConfig


class Sample(NamedTuple):
  """A text that the model wrote.

  Attributes:
    name: tells it from the others of its step, the same in every step: "sample_0".
    record: what samples.jsonl keeps of it: step, prompt_text, text, pieces, reveal_step, nfe, the
      decoder and more, as `generate --json` prints.
    picture: () -> PNG of the order its tokens were revealed in; None: none is wanted.
  """

  name: str
  record: dict[str, Any]
  picture: Callable[[], bytes] | None

  @property
  def text(self) -> str:
    """Prompt and continuation."""
    return f"{self.record.get('prompt_text') or ''}{self.record.get('text') or ''}"


class Writer:
  """Base of writers; what is not overridden does nothing."""

  def __init__(self, run: Run):
    """Opens what is written to.

    Raises:
      UsageError: it cannot be, in one line that says what to do.
    """

  def scalars(self, step: int, values: Mapping[str, float]) -> None:
    """Finite numbers of one step, by names like "train/loss" and "eval/loss"."""

  def sample(self, step: int, sample: Sample) -> None:
    """One text of one step."""

  def flush(self) -> None:
    """Everything given so far must survive a kill."""

  def close(self) -> None:
    """The run has ended, well or not."""
