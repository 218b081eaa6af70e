"""A trace of some updates by jax.profiler, which XProf and TensorBoard show."""

from __future__ import annotations

import contextlib
import pathlib
import re
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from sbdjax import remote
from sbdjax.errors import UsageError

# Where the trace is put below the workdir; viewers look there.
FOLDER = pathlib.PurePath("plugins", "profile")


class Steps(NamedTuple):
  """Updates to trace.

  Attributes:
    first, last: counted from 1, both included.
  """

  first: int
  last: int


def parse(text: str) -> Steps:
  """The updates that `--profile=FIRST:LAST` names.

  Raises:
    UsageError: anything else.
  """
  found = re.fullmatch(r"(\d+):(\d+)", text)
  steps = Steps(int(found[1]), int(found[2])) if found else None
  if steps is None or not 1 <= steps.first <= steps.last:
    raise UsageError(f"--profile={text!r}: give the first and the last update, such as 10:12")
  return steps


class Profiler:
  """Traces updates of one process; every other has nothing to do.

  Args:
    workdir: receives `plugins/profile/<time>/`.
    steps: which updates; None: none.
  """

  def __init__(self, workdir: pathlib.Path, steps: Steps | None):
    self._workdir, self._steps = workdir, steps
    self._tracing = False
    self._local: tempfile.TemporaryDirectory | None = (
      None  # where the workdir is on an object store
    )

  @contextlib.contextmanager
  def step(self, number: int) -> Iterator[None]:
    """Around what an update queues: the batch and the step."""
    steps = self._steps
    if steps is not None and not self._tracing and steps.first <= number <= steps.last:
      if remote.is_remote(self._workdir):
        self._local = tempfile.TemporaryDirectory(prefix="sbdjax-profile-")
      jax.profiler.start_trace(self._workdir if self._local is None else self._local.name)
      self._tracing = True
    if not self._tracing:
      yield
      return
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
      yield

  def done(self, number: int, state: Any) -> pathlib.Path | None:
    """After an update: ends the trace with the last of them; returns where it is then."""
    if not self._tracing or self._steps is None or number < self._steps.last:
      return None
    jax.block_until_ready(state)  # updates are queued: the device is still at work
    self.close()
    return self._workdir / FOLDER

  def close(self) -> None:
    """Ends a trace that is under way."""
    if self._tracing:
      self._tracing = False
      jax.profiler.stop_trace()
      if self._local is not None:
        remote.upload(self._local.name, self._workdir)
        self._local.cleanup()
