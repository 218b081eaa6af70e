"""Averages, what is fetched when, the time that counts, and files that never repeat a step."""

import json
import math
import resource

import jax.numpy as jnp
import pytest
from tensorboardX.event_file_writer import EventsWriter

from sbdjax.errors import DivergedError
from sbdjax.train import metrics
from sbdjax.train.atomic_files import replace_text
from sbdjax.train.progress import describe
from sbdjax.train.tracking.config import TrackingConfig
from sbdjax.train.tracking.tensorboard import TensorBoard
from sbdjax.train.tracking.writer import Run
from tests.train.events import events


class _Clock:
  """A clock moved by hand."""

  now = 0.0

  def __call__(self):
    return self.now


def _step(loss, weight=1.0, tokens=100.0, grad=1.0):
  pairs = {"loss": (loss, weight), "tokens": (tokens, 1.0), "grad_norm": (grad, 1.0)}
  return {k: (jnp.float32(a), jnp.float32(b)) for k, (a, b) in pairs.items()}


def _meter(log_every=2, last=100):
  emitted, clock = [], _Clock()
  meter = metrics.TrainingMeter(log_every, last, lambda s, v: emitted.append((s, v)), clock)
  return meter, emitted, clock


def test_interval_means_are_sums_over_weights():
  meter, emitted, _ = _meter()
  for step, (loss, weight) in enumerate([(1.0, 1.0), (8.0, 3.0), (5.0, 1.0)], start=1):
    meter.push(step, _step(loss, weight))
  assert [step for step, _ in emitted] == [2]
  assert emitted[0][1]["loss"] == 9.0 / 4.0  # not the mean of 1 and 8/3
  meter.push(4, _step(7.0, 3.0))
  meter.flush()
  assert emitted[1] == (4, emitted[1][1]) and emitted[1][1]["loss"] == 3.0


def test_metrics_are_read_only_after_the_next_update_is_queued():
  class Unread:
    def __getitem__(self, name):
      raise AssertionError("read too early")

  meter, _, _ = _meter()
  meter.push(1, _step(1.0))
  meter.push(2, Unread())


def test_the_last_update_is_reported_in_a_short_interval():
  meter, emitted, _ = _meter(log_every=10, last=3)
  for step in (1, 2, 3):
    meter.push(step, _step(1.0))
  meter.flush()
  assert [step for step, _ in emitted] == [3]


def test_tokens_per_second_leave_out_compilation_and_pauses():
  meter, emitted, clock = _meter(log_every=4)
  clock.now = 50.0  # compiling, before the first update is done
  meter.push(1, _step(1.0))
  meter.push(2, _step(1.0))  # update 1 is over: the clock starts
  clock.now = 51.0
  meter.push(3, _step(1.0))
  clock.now = 52.0
  with meter.paused():  # update 3 is over
    clock.now = 1000.0
  meter.push(4, _step(1.0, tokens=400.0))
  clock.now = 1002.0
  meter.flush()
  # 100 + 100 + 400 tokens of updates 2 to 4 in 1 + 1 + 2 seconds.
  assert emitted[0][1]["tokens_per_second"] == 150.0
  assert emitted[0][1]["tokens_per_step"] == 175.0
  assert emitted[0][1]["step_seconds"] == pytest.approx(4 / 3)


def test_waits_for_input_are_told_apart_from_the_step():
  meter, emitted, clock = _meter(log_every=3)

  def update(wait, work):
    with meter.waiting():
      clock.now += wait
    meter.push(len(seen) + 1, _step(1.0))
    seen.append(wait)
    clock.now += work

  seen = []
  update(7.0, 30.0)  # compiling: what the first update waits for does not count
  for wait in (1.0, 0.5, 0.25):
    update(wait, 2.0)
  values = emitted[0][1]
  # Updates 2 and 3, each noticed when the next is queued.
  assert values["input_wait_seconds"] == pytest.approx((0.5 + 0.25) / 2)
  assert values["step_seconds"] == pytest.approx((2.5 + 2.25) / 2)


@pytest.mark.parametrize(("kind", "name"), [("loss", "loss"), ("grad", "gradient")])
def test_what_is_not_finite_is_named_with_its_step(kind, name):
  meter, _, _ = _meter()
  meter.push(1, _step(1.0))
  meter.push(2, _step(**({"loss": 1.0} | {kind: math.nan})))
  with pytest.raises(DivergedError, match=f"the {name} is nan at step 2"):
    meter.push(3, _step(1.0))


def writer_of(workdir, step):
  """One that tells TensorBoard as well."""
  run = Run(workdir, step, {}, TrackingConfig())
  return metrics.MetricsWriter(workdir, step, [TensorBoard(run)])


def test_one_line_a_step_and_no_line_twice(tmp_path):
  writer = writer_of(tmp_path, 0)
  for step in (2, 4, 6):
    writer.write(step, {"train/loss": float(step)})
    writer.write(step, {"eval/loss": math.nan})
  writer.close()
  path = tmp_path / metrics.FILE
  path.write_text(path.read_text() + '{"step": 8, "tra')  # killed while writing
  writer = writer_of(tmp_path, 4)
  writer.write(6, {"train/loss": 60.0})
  writer.close()
  records = [json.loads(line) for line in path.read_text().splitlines()]
  assert records == [
    {"step": 2, "train/loss": 2.0, "eval/loss": None},
    {"step": 4, "train/loss": 4.0, "eval/loss": None},
    {"step": 6, "train/loss": 60.0},
  ]
  # TensorBoard is told to forget what lies beyond the checkpoint.
  newest = max(tmp_path.glob("events.*"), key=lambda p: p.stat().st_mtime)
  starts = [e.step for e in events(newest) if e.HasField("session_log")]
  assert starts == [5]
  assert [e.step for e in events(newest) if e.HasField("summary")] == [6]


def test_evaluation_weighs_batches_by_their_weight():
  batches = [(2.0, 1.0), (9.0, 3.0)]
  values = metrics.evaluate(
    lambda params, b, key: {"loss": b, "none": (0.0, 0.0)}, None, batches, None
  )
  assert values["loss"] == 11.0 / 4.0 and math.isnan(values["none"])


def test_the_line_people_read():
  values = {"loss": 1.23456, "learning_rate": 1e-3, "tokens_per_second": 12345.6, "grad_norm": 1.0}
  assert describe(values) == "loss 1.2346  lr 1.0e-03  12,346 tokens/s"


def test_a_file_that_cannot_be_written_keeps_its_old_text(tmp_path):
  path = tmp_path / "config.json"
  replace_text(path, "old")
  limit = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (10, limit[1]))
  try:
    with pytest.raises(OSError) as error:
      replace_text(path, "x" * 100)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
  assert error.value.filename == str(path)
  assert [p.name for p in tmp_path.iterdir()] == ["config.json"] and path.read_text() == "old"


def test_events_that_cannot_be_written_are_told_and_nothing_waits(tmp_path, monkeypatch):
  writer = writer_of(tmp_path, 0)

  def full(self, event):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(EventsWriter, "write_event", full)
  for step in range(1, 40):  # a queue would be full after ten
    with pytest.raises(OSError, match="No space"):
      writer.write(step, {"loss": 1.0})
