"""The training loop: updates, evaluation, checkpoints, resuming, and ending well."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import pathlib
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax.experimental import multihost_utils

from sbdjax import memory, remote, workdir_lock
from sbdjax.errors import DivergedError, UsageError
from sbdjax.losses.base import LossFn
from sbdjax.train import banner
from sbdjax.train import metrics as metrics_lib
from sbdjax.train import state as state_lib
from sbdjax.train.atomic_files import replace_text
from sbdjax.train.checkpoints import Checkpointer
from sbdjax.train.environment import environment
from sbdjax.train.optim import OptimConfig, make_optimizer
from sbdjax.train.pace import Pace
from sbdjax.train.parallel import Layout, ParallelConfig, check_batch, make_layout
from sbdjax.train.profile import Profiler, Steps
from sbdjax.train.progress import Progress, make_progress
from sbdjax.train.state import TrainState
from sbdjax.train.step import TrainStepConfig, make_eval_step, make_train_step
from sbdjax.train.stop import StopSignals
from sbdjax.train.tracking import registry
from sbdjax.train.tracking.config import TrackingConfig
from sbdjax.train.tracking.samples import Sampler, one_line
from sbdjax.train.tracking.writer import Run

DONE = "DONE"
_TRACKING = TrackingConfig()


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


class _Run(NamedTuple):
  """The compiled parts of a run.

  Attributes:
    rows: of a batch, with those that only fill it up.
  """

  rows: int
  layout: Layout
  make: Callable[[], TrainState]
  abstract: TrainState
  train_step: Callable
  eval_step: Callable
  eval_key: jax.Array


def train(
  task: Task,
  optim: OptimConfig,
  config: TrainConfig,
  parallel: ParallelConfig,
  workdir: Any,
  record: dict[str, Any],
  beside: Callable[[pathlib.Path], Any] = lambda workdir: None,
  tracking: TrackingConfig = _TRACKING,
  about: Sequence[str] = (),
  profile: Steps | None = None,
) -> TrainState:
  """Trains to `config.steps`, from the newest checkpoint in `workdir` if there is one.

  The workdir receives `config.json` (= `record`), `env.json`, `metrics.jsonl`, `samples.jsonl` where
  there is a sampler, what the writers of `tracking` keep, `checkpoints/<step>/` and, at the end,
  `DONE`. Nothing is written before all settings have been found usable. A run that is killed and
  started again ends with the same parameters, bit for bit, as one that was not. SIGTERM saves and
  returns early.

  Args:
    task: model, loss and data.
    optim: optimiser settings.
    config: length and rhythm.
    parallel: device layout.
    workdir: the run's directory, made if need be; a path, also of an object store (`remote`).
    record: JSON-like settings, kept with the run.
    beside: writes what else is kept with them.
    tracking: who is told of metrics and samples.
    about: lines on model and data that are printed first.
    profile: updates that the first process traces into the workdir.

  Returns:
    The last state.

  Raises:
    UsageError: settings that do not fit together or the devices; another process writes `workdir`.
    CheckpointError: a checkpoint cannot be written, read, or used with these settings.
    DivergedError: a loss or gradient is not finite; the last checkpoint is kept.
    KeyboardInterrupt: SIGINT, after saving.
  """
  workdir = remote.workdir(workdir)
  if workdir.exists() and not workdir.is_dir():
    raise UsageError(f"--workdir={workdir} is a file: give a directory")
  if profile is not None and profile.last > config.steps:
    raise UsageError(
      f"--profile={profile.first}:{profile.last} lies beyond train.steps={config.steps}"
    )
  writers = registry.find(tracking.writers)
  run = _prepare(task, optim, config, parallel)
  with contextlib.ExitStack() as stack:
    if jax.process_index() == 0:
      stack.enter_context(workdir_lock.hold(workdir, "train"))
    checkpointer = Checkpointer(workdir, max_to_keep=config.max_to_keep, keep_best=config.keep_best)
    state = _start(run, task.batches, config, checkpointer)
    start = int(state.step)
    primary = jax.process_index() == 0
    finished = start == config.steps
    changes = _write_records(workdir, record, beside, finished) if primary else []
    progress = make_progress(config.steps, start, silent=not primary)
    stack.callback(progress.close)
    for line in _opening(run, config, workdir, start, about, changes):
      progress.note(line)
    writer = None
    if primary:
      told = Run(workdir, start, record, tracking)
      writer = metrics_lib.MetricsWriter(workdir, start, [make(told) for make in writers])
      stack.callback(writer.close)
    profiler = Profiler(workdir, profile if primary else None)
    stack.callback(profiler.close)
    stop = stack.enter_context(StopSignals())
    try:
      state = _loop(run, state, task, config, checkpointer, writer, progress, profiler, stop)
    except DivergedError as e:
      checkpointer.close()
      raise DivergedError(f"{e}; {_kept(checkpointer)}") from None
    checkpointer.close()
    reached = int(state.step)
    if reached == config.steps and primary:
      replace_text(workdir / DONE, json.dumps({"step": reached}) + "\n")
    if stop.received is not None and reached < config.steps:
      progress.note(f"stopped by {signal.Signals(stop.received).name}: step {reached} is saved")
      if stop.received == signal.SIGINT:
        raise KeyboardInterrupt
  return state


def _prepare(task: Task, optim: OptimConfig, config: TrainConfig, parallel: ParallelConfig) -> _Run:
  """Checks that everything fits together, without touching the disk or the batches' position."""
  layout = make_layout(parallel)
  position = task.batches.get_state()
  batch = next(task.batches)
  task.batches.set_state(position)
  rows = next(iter(batch.values())).shape[0] * layout.share.count
  check_batch(rows, config.accumulation, layout.batch_shards)
  optimizer = make_optimizer(optim, config.steps)
  # Independent streams: a changed evaluation must not change training.
  init_key, run_key, eval_key = jax.random.split(jax.random.key(config.seed), 3)

  def make(params: Any, teacher: Any) -> TrainState:
    params = task.lm.init(init_key) if params is None else params
    ema = config.ema_decay > 0
    return state_lib.create(params, optimizer.tx, run_key, ema=ema, teacher=teacher)

  abstract = state_lib.abstract(lambda: make(task.params, task.teacher), layout.shardings)
  _check_memory(abstract)
  placed = jax.tree.map(lambda x: x.sharding, abstract)
  step_config = TrainStepConfig(config.accumulation, config.ema_decay)
  train_step = make_train_step(task.lm, task.loss_fn, optimizer, step_config)
  eval_step = make_eval_step(task.lm, task.eval_loss_fn or task.loss_fn)
  run = _Run(
    rows=rows,
    layout=layout,
    make=lambda: jax.jit(make, out_shardings=placed)(_movable(task.params), _movable(task.teacher)),
    abstract=abstract,
    train_step=layout.compile_train(train_step, abstract),
    eval_step=layout.compile_eval(eval_step, abstract.params),
    eval_key=eval_key,
  )
  # Tracing the first batch finds what only the loss knows (no mask token, say) before any file
  # exists.
  jax.eval_shape(train_step, abstract, batch)
  return run


def _opening(
  run: _Run,
  config: TrainConfig,
  workdir: Any,
  start: int,
  about: Sequence[str],
  changes: Sequence[str],
) -> Iterator[str]:
  """What is printed before the first update: what runs where, what is resumed, what fills batches up."""
  if about:
    yield from (*about, banner.of_devices(_state_bytes(run.abstract)))
  if start == config.steps:
    yield f"{workdir} is finished: all {start} steps are done (another --workdir, or more train.steps)"
  elif start:
    yield f"resuming {workdir} at step {start}"
  if start:
    yield from (f"changed since the last start: {change}" for change in changes)
  if run.rows > config.batch_size:
    yield (
      f"{run.rows - config.batch_size} empty rows fill up each batch of {config.batch_size} for "
      f"{run.layout.batch_shards} devices and {config.accumulation} microbatches"
    )


def _movable(params: Any) -> Any:
  """Parameters that lie on one device of several as host arrays, which may go to all of them."""

  def movable(x: Any) -> Any:
    alone = isinstance(x, jax.Array) and len(x.sharding.device_set) == 1
    return np.asarray(x) if alone and jax.device_count() > 1 else x

  return jax.tree.map(movable, params)


def _check_memory(abstract: TrainState) -> None:
  """Raises UsageError where the state alone is more than a device has free."""
  memory.check(
    _state_bytes(abstract),
    memory.device(),
    "the train state (parameters, their averages and the optimiser's) on each device",
    "make the model smaller, or cut it over more devices (parallel; train --dry_run tells more)",
  )


def _state_bytes(abstract: TrainState) -> int:
  """Bytes that the train state takes of one device's memory."""
  return memory.of_shards(abstract, jax.tree.map(lambda x: x.sharding, abstract))


def _start(
  run: _Run, batches: Batches, config: TrainConfig, checkpointer: Checkpointer
) -> TrainState:
  """The newest checkpoint with its data position, or a new state."""
  latest = _of_first(checkpointer.latest())
  if latest is None:
    return run.make()
  if latest > config.steps:
    raise UsageError(
      f"{checkpointer.root} is at step {latest}, beyond train.steps={config.steps}: raise "
      "train.steps or use another --workdir"
    )
  state, position = checkpointer.restore(run.abstract)
  batches.set_state(position)
  return state


def _of_first(step: int | None) -> int | None:
  """What process 0 found: a file system may show it to the others later."""
  if jax.process_count() == 1:
    return step
  found = multihost_utils.broadcast_one_to_all(np.int32(-1 if step is None else step))
  return None if found < 0 else int(found)


def _loop(
  run: _Run,
  state: TrainState,
  task: Task,
  config: TrainConfig,
  checkpointer: Checkpointer,
  writer: metrics_lib.MetricsWriter | None,
  progress: Progress,
  profiler: Profiler,
  stop: StopSignals,
) -> TrainState:
  """Updates until the end or a signal; the last state is saved."""

  def write(step: int, prefix: str, values: dict[str, float]) -> None:
    if writer:
      writer.write(step, {f"{prefix}/{name}": value for name, value in values.items()})

  def in_bits(values: dict[str, float]) -> dict[str, float]:
    found = {name: values[nats] for nats, name in task.in_bits.items() if nats in values}
    return values | {name: nats / math.log(2) for name, nats in found.items()}

  def log(step: int, values: dict[str, float]) -> None:
    values = in_bits(values)
    write(step, "train", values)
    progress.update(step, values)

  def evaluate(step: int, state: TrainState, batches: Iterable[dict[str, Any]]) -> float | None:
    """Evaluates the parameters and their moving average; returns the loss of the last of them."""
    versions = {"eval": state.params, "eval_ema": state.ema_params}
    score = None
    for prefix, params in versions.items():
      if params is not None:
        placed = map(run.layout.place, batches)
        values = in_bits(metrics_lib.evaluate(run.eval_step, params, placed, run.eval_key))
        write(step, prefix, values)
        progress.note(f"step {step}  {prefix} loss {values['loss']:.4f}")
        score = values["loss"]
    return score

  def sample(step: int, state: TrainState, sampler: Sampler) -> None:
    """Decodes with the moving average, where there is one."""
    samples = sampler(step, state.params if state.ema_params is None else state.ema_params)
    if writer:
      for one in samples:
        writer.sample(step, one)
    progress.note(f"step {step}  sample {one_line(samples)}")

  meter = metrics_lib.TrainingMeter(config.log_every, config.steps, log)
  pace = Pace(int(state.step), config.steps, progress.note)
  for step in range(int(state.step) + 1, config.steps + 1):
    with profiler.step(step):
      with meter.waiting():
        batch = run.layout.place(next(task.batches))
      state, metrics = run.train_step(state, batch)
    if trace := profiler.done(step, state):
      progress.note(f"trace: {trace} (tensorboard --logdir, with the package xprof)")
    meter.push(step, metrics)
    progress.update(step)
    pace.update(step)
    checkpointer.check()
    ending = stop.at(step) or step == config.steps
    score = None
    batches = task.eval_batches
    if batches is not None and config.eval_every and step % config.eval_every == 0:
      with meter.paused():
        score = evaluate(step, state, batches)
    if task.sampler is not None and (step % task.sampler.every == 0 or step == config.steps):
      with meter.paused():
        sample(step, state, task.sampler)
    if ending or (config.checkpoint_every and step % config.checkpoint_every == 0):
      with meter.paused():  # which also waits for this step's loss to be known finite
        if writer:
          writer.flush()  # lines up to the checkpoint are never written again
        checkpointer.save(state, task.batches.get_state(), score=score)
    if ending:
      break
  return state


def _kept(checkpointer: Checkpointer) -> str:
  last = checkpointer.latest()
  kept = "no checkpoint was saved" if last is None else f"{checkpointer.root / str(last)} is kept"
  return f"{kept}; lower optim.learning_rate or train.seed another run"


def _write_records(
  workdir: pathlib.Path, record: dict[str, Any], beside: Callable[[pathlib.Path], Any], done: bool
) -> list[str]:
  """Writes what the run is; returns what differs from what an earlier start wrote."""
  path, environment_path = workdir / "config.json", workdir / "env.json"
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    if not done:
      (workdir / DONE).unlink(missing_ok=True)
    before, around_before = _read(path), _read(environment_path)
    around = environment()
    beside(workdir)
    replace_text(path, json.dumps(record, indent=2) + "\n")
    replace_text(environment_path, json.dumps(around, indent=2) + "\n")
  except PermissionError as e:
    raise UsageError(f"cannot write to --workdir={workdir}: {e.strerror}") from e
  flat = lambda values: {
    name.replace("/", "."): leaf
    for name, leaf in state_lib.leaf_names(json.loads(json.dumps(values))).items()
  }
  settings = banner.changes(flat(before), flat(record))
  pair = (flat(banner.of_interest(each)) for each in (around_before, around))
  return settings + banner.changes(*pair)


def _read(path: pathlib.Path) -> dict[str, Any]:
  """A record of an earlier start; empty where there is none."""
  try:
    found = json.loads(path.read_text())
  except (OSError, ValueError):
    return {}
  return found if isinstance(found, dict) else {}
