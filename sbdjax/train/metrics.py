"""The run's numbers: fetched one step late, averaged, written as JSON lines and told to writers."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax

from sbdjax import plain_json, remote
from sbdjax.appending import append_line
from sbdjax.errors import DivergedError
from sbdjax.train.atomic_files import replace_text
from sbdjax.train.tracking.writer import Sample, Writer

FILE, SAMPLES = "metrics.jsonl", "samples.jsonl"
Pairs = dict[str, tuple[float, float]]


def means(pairs: Pairs) -> dict[str, float]:
  """sum / weight of each metric; NaN where nothing was weighed."""
  return {
    name: float(total) / float(weight) if weight else math.nan
    for name, (total, weight) in pairs.items()
  }


def add(totals: Pairs, pairs: Pairs) -> Pairs:
  """Adds sums and weights name by name, in float64."""
  sums = dict(totals)
  for name, (total, weight) in pairs.items():
    old_total, old_weight = sums.get(name, (0.0, 0.0))
    sums[name] = (old_total + float(total), old_weight + float(weight))
  return sums


def truncate(path: pathlib.Path, step: int) -> None:
  """Drops what lies beyond `step` (and a torn last line), so that no step is written twice."""
  if not path.is_file():
    return
  kept = []
  for line in path.read_bytes().decode("utf-8", "replace").splitlines():
    try:
      found = int(json.loads(line)["step"])
    except (ValueError, TypeError, LookupError, RecursionError):
      continue  # the line a killed run was writing
    if found <= step:
      kept.append(line + "\n")
  replace_text(path, "".join(kept))


class MetricsWriter:
  """One JSON object a step in `metrics.jsonl`, one a sample in `samples.jsonl`; writers get the same.

  Values given for one step at different moments (training, evaluation) end up in one object.

  Args:
    workdir: where the files are written.
    step: step the run (re)starts from; what an earlier run wrote beyond it is dropped.
    writers: who else is told; they are closed with this one.
  """

  def __init__(self, workdir: str | os.PathLike, step: int, writers: Sequence[Writer] = ()):
    path = remote.path(workdir) / FILE
    self._samples = path.with_name(SAMPLES)
    for file in (path, self._samples):
      truncate(file, step)
    self._file = remote.GrowingObject(path) if remote.is_remote(path) else path.open("a")
    self._writers = writers
    self._pending: dict[str, Any] = {}
    self._remote = remote.is_remote(path)  # each flush is a file written anew there

  def write(self, step: int, values: dict[str, float]) -> None:
    """Adds scalars of `step`; steps come in ascending order."""
    if self._pending and self._pending["step"] != step:
      self._end_line()
      if not self._remote:
        self.flush()
    finite = {k: v if math.isfinite(v) else None for k, v in values.items()}
    self._pending = {"step": step} | self._pending | finite
    told = {name: value for name, value in finite.items() if value is not None}
    for writer in self._writers:
      writer.scalars(step, told)

  def sample(self, step: int, sample: Sample) -> None:
    """Adds a text that the model wrote after `step` updates."""
    line = plain_json.dumps(sample.record)
    if self._remote:
      whole = remote.GrowingObject(self._samples)
      whole.write(line + "\n")
      whole.flush()
    else:
      append_line(self._samples, line)
    for writer in self._writers:
      writer.sample(step, sample)

  def flush(self) -> None:
    """Puts everything given so far into the files."""
    self._end_line()
    self._file.flush()
    for writer in self._writers:
      writer.flush()

  def _end_line(self) -> None:
    if self._pending:
      self._file.write(json.dumps(self._pending, allow_nan=False) + "\n")
      self._pending = {}

  def close(self) -> None:
    with contextlib.ExitStack() as stack:  # each of them, whatever the others do
      for writer in self._writers:
        stack.callback(writer.close)
      stack.callback(self._file.close)
      self.flush()


class TrainingMeter:
  """Follows the metrics of every update without holding up the device.

  The metrics of an update are fetched when the next one has been queued, so the device never
  waits for the host. A non-finite loss or gradient is noticed at that moment.

  Args:
    log_every: updates an average is taken over.
    last: the run's last update, reported however short its interval is.
    emit: (step, values) called every `log_every` updates with the means since the last call and
      `tokens_per_second` (not padding), `step_seconds` of an update by the clock, and of these
      `input_wait_seconds`, in which no batch was there yet; compilation, evaluation and saving are
      excluded.
    clock: seconds, monotonic.
  """

  def __init__(
    self,
    log_every: int,
    last: int,
    emit: Callable[[int, dict[str, float]], None],
    clock: Callable[[], float] = time.perf_counter,
  ):
    self._log_every, self._last = log_every, last
    self._emit, self._clock = emit, clock
    self._pending: tuple[int, Any] | None = None
    self._totals: Pairs = {}
    self._tokens, self._seconds, self._timed, self._waited = 0.0, 0.0, 0, 0.0
    self._since: float | None = None  # None until the first update, compilation included, is over

  def push(self, step: int, metrics: Any) -> None:
    """Takes the device metrics of update `step` and accounts for the update before it.

    Raises:
      DivergedError: the loss or the gradient of the update before is not finite.
    """
    before, self._pending = self._pending, (step, metrics)
    if before is not None:
      self._account(*before)

  def flush(self) -> None:
    """Accounts for the last update; waits for the device. Raises DivergedError as `push` does."""
    if self._pending is not None:
      before, self._pending = self._pending, None
      self._account(*before)

  @contextlib.contextmanager
  def waiting(self) -> Iterator[None]:
    """Time spent inside is spent on input: on the next batch, and on its way to the devices."""
    start = self._clock()
    yield
    if self._since is not None:
      self._waited += self._clock() - start

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Time spent inside does not count as training."""
    self.flush()
    self._stop_clock()
    yield
    if self._since is not None:
      self._since = self._clock()

  def _stop_clock(self) -> None:
    if self._since is not None:
      now = self._clock()
      self._seconds += now - self._since
      self._since = now

  def _account(self, step: int, metrics: Any) -> None:
    pairs = jax.device_get(metrics)
    for name in ("loss", "grad_norm"):
      if not math.isfinite(pairs[name][0]):
        what = "loss" if name == "loss" else "gradient"
        raise DivergedError(f"the {what} is {float(pairs[name][0])} at step {step}")
    self._totals = add(self._totals, pairs)
    if self._since is None:
      self._since = self._clock()
    else:
      self._tokens += float(pairs["tokens"][0])
      self._timed += 1
    if step % self._log_every == 0 or step == self._last:
      self._stop_clock()
      values = means(self._totals)
      values["tokens_per_step"] = values.pop("tokens")
      if self._tokens:
        values["tokens_per_second"] = self._tokens / max(self._seconds, 1e-9)
      if self._timed:
        values["step_seconds"] = self._seconds / self._timed
        values["input_wait_seconds"] = self._waited / self._timed
      self._totals = {}
      self._tokens, self._seconds, self._timed, self._waited = 0.0, 0.0, 0, 0.0
      self._emit(step, values)


def evaluate(
  eval_step: Callable[[Any, Any, jax.Array], Any],
  params: Any,
  batches: Iterable[Any],
  key: jax.Array,
) -> dict[str, float]:
  """Means over all of `batches`, fetched once at the end."""
  totals: Pairs = {}
  for pairs in jax.device_get([eval_step(params, batch, key) for batch in batches]):
    totals = add(totals, pairs)
  return means(totals)
