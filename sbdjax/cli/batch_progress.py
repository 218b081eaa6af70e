"""How far a file of prompts is: a bar in a terminal, a line every few seconds anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich import progress as rich_progress
from rich.console import Console

_SECONDS_PER_LINE = 10.0


class BatchProgress:
  """Prompts done, tokens/s, prompts/s and the time left, on stderr.

  Attributes:
    compiling: the seconds spent compiling so far, which no rate counts.
  """

  def __init__(self, total: int, done: int):
    """Of `total` prompts, `done` of them by earlier runs."""
    self.compiling: Callable[[], float] = lambda: 0.0
    self._total, self._before = total, done
    self._prompts = self._tokens = 0
    self._start = self._shown = time.monotonic()
    self._console = Console(stderr=True, soft_wrap=True)
    self._bar: rich_progress.Progress | None = None
    if self._console.is_terminal:
      self._bar = rich_progress.Progress(
        rich_progress.BarColumn(bar_width=24),
        rich_progress.TextColumn("{task.description}", markup=False),
        console=self._console,
        transient=True,
      )
      self._task = self._bar.add_task("compiling ...", total=total, completed=done)
      self._bar.start()

  def add(self, tokens: int) -> None:
    """A further prompt is done, with so many tokens."""
    self._prompts += 1
    self._tokens += tokens
    if self._bar is not None:
      done = self._before + self._prompts
      self._bar.update(self._task, completed=done, description=self.line())
    elif time.monotonic() - self._shown > _SECONDS_PER_LINE:
      self._shown = time.monotonic()
      self.note(self.line())

  @property
  def seconds(self) -> float:
    """Since the beginning, compiling apart."""
    return max(time.monotonic() - self._start - self.compiling(), 1e-9)

  def line(self) -> str:
    """`250 of 1,000 prompts, 1,234 tokens/s, 12.3 prompts/s, 1:01 left`."""
    done, rate = self._before + self._prompts, self._prompts / self.seconds
    left = (self._total - done) / rate if rate else 0.0
    return (
      f"{done:,} of {self._total:,} prompts, {self._tokens / self.seconds:,.0f} tokens/s, "
      f"{rate:,.2f} prompts/s, {clock(left)} left"
    )

  def note(self, text: str) -> None:
    """One line that stays."""
    self._console.print(text, highlight=False, markup=False)

  def close(self) -> None:
    """Takes the bar away."""
    if self._bar is not None:
      self._bar.stop()


def clock(seconds: float) -> str:
  """`1:01` or `2:03:04`."""
  minutes, rest = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
