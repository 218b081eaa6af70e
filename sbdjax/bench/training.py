"""Step time and peak memory of training against the length of rows and the size of the vocabulary."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from sbdjax.bench import memory
from sbdjax.bench.timing import compile_for, seconds_a_call


@dataclasses.dataclass(frozen=True)
class TrainingTiming:
  """One measurement.

  Attributes:
    length: L, tokens of a row of the batch (a loss may run more through the model: SBD 2L).
    vocab_size: V.
    num_params: of the model.
    seconds: median over steps; `low` and `high`: fastest and slowest.
    tokens_per_second: of the batch's tokens, at the median.
    peak_bytes: device memory at the peak of a step.
    peak_source: "device" or "compiled", see `memory.Peak`.
    compile_seconds: wall-clock.
    compile_cpu_seconds: processor time of the same.
    repeats: steps timed.
  """

  length: int
  vocab_size: int
  num_params: int
  seconds: float
  low: float
  high: float
  tokens_per_second: float
  peak_bytes: int
  peak_source: str
  compile_seconds: float
  compile_cpu_seconds: float
  repeats: int


def make_batch(batch_size: int, length: int, vocab_size: int) -> dict[str, np.ndarray]:
  """Rows of one random document each, and what the Jacobi loss asks for besides.

  The noisy blocks are of 16 tokens, or of half the row where that is less, and cover its second half.
  """
  rng, shape = np.random.default_rng(0), (batch_size, length)
  block = max(1, min(16, length // 2))
  blocks = length // 2 // block
  ids = lambda *dims: np.asarray(rng.integers(0, vocab_size, dims), np.int32)
  return {
    "tokens": ids(*shape),
    "weights": np.ones(shape, np.float32),
    "positions": np.tile(np.arange(length, dtype=np.int32), (batch_size, 1)),
    "segment_ids": np.ones(shape, np.int32),
    "example_id": np.arange(batch_size, dtype=np.int32),
    "noisy": ids(batch_size, blocks, block),
    "start": np.full(batch_size, length - blocks * block, np.int32),
  }


def time_step(
  step: Callable, state: Any, batch: dict[str, Any], vocab_size: int, repeats: int
) -> TrainingTiming:
  """Compiles and times one point.

  Args:
    step: jitted (state, batch) -> (state, metrics), which takes over its state.
    state: has `params`; used up.
    batch: from `make_batch`, on the device.
    vocab_size: V, for the record.
    repeats: steps timed, after one that is not.
  """
  num_params = sum(x.size for x in jax.tree.leaves(state.params))
  rows, length = batch["tokens"].shape
  device = next(iter(batch["tokens"].devices()))
  program = compile_for(step, state, batch)
  before = memory.high_water(device)

  def run():
    nonlocal state
    state, metrics = program.call(state, batch)
    return metrics, state

  seconds = seconds_a_call(run, repeats)
  peak = memory.peak_of(program, before, memory.high_water(device))
  return TrainingTiming(
    length=length,
    vocab_size=vocab_size,
    num_params=num_params,
    seconds=seconds.median,
    low=seconds.low,
    high=seconds.high,
    tokens_per_second=rows * length / seconds.median,
    peak_bytes=peak.bytes,
    peak_source=peak.source,
    compile_seconds=program.compile_seconds,
    compile_cpu_seconds=program.compile_cpu_seconds,
    repeats=repeats,
  )
