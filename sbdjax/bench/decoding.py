"""Tokens per second of decoding: repeated, compilation and the prompts' forwards apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from sbdjax.bench.overhead import Overhead
from sbdjax.bench.timing import Pass, TimedDecoder, summarise
from sbdjax.decode.method import Method


@dataclasses.dataclass(frozen=True)
class DecodingTiming:
  """One measurement.

  Attributes:
    decoder: what was timed.
    batch_size: prompts decoded together.
    tokens: generated tokens of one run, over all prompts of the batch.
    nfe: forwards of one run, the mean over rows (prompts' forwards apart).
    tokens_per_second: median over runs of tokens / seconds, after the prompts' forwards.
    low, high: slowest and fastest run.
    prefill_seconds: median time of the prompts' forwards; None where it cannot be told apart.
    compile_seconds: time to compile; None for a program that is not compiled.
    repeats: runs.
    prompt_length: tokens of each prompt; with the generated ones, the length of the cache.
    step_seconds, forward_seconds: of a step of the sampler and of its forward alone; None where
      they were not measured (`overhead.measure`).
    overhead: step / forward - 1, median over runs; `overhead_low`, `overhead_high`: the extremes.
  """

  decoder: str
  batch_size: int
  tokens: int
  nfe: float
  tokens_per_second: float
  low: float
  high: float
  prefill_seconds: float | None
  compile_seconds: float | None
  repeats: int
  prompt_length: int
  step_seconds: float | None = None
  forward_seconds: float | None = None
  overhead: float | None = None
  overhead_low: float | None = None
  overhead_high: float | None = None

  @property
  def tokens_per_forward(self) -> float:
    """Generated tokens of a row / its forwards."""
    return self.tokens / self.batch_size / self.nfe


def with_overhead(row: DecodingTiming, found: Overhead) -> DecodingTiming:
  """`row` with what its sampler adds to its forwards."""
  return dataclasses.replace(
    row,
    step_seconds=found.step_seconds,
    forward_seconds=found.forward_seconds,
    overhead=found.share.median,
    overhead_low=found.share.low,
    overhead_high=found.share.high,
  )


def time_sampler(
  name: str,
  decoder: TimedDecoder,
  method: Method,
  params: Any,
  prompts: Sequence[Sequence[int]],
  *,
  repeats: int,
) -> tuple[DecodingTiming, list[list[int]]]:
  """Times one batch of prompts; also returns the tokens that were generated."""
  run = lambda: decoder.run(method, params, prompts, jax.random.key(0), len(prompts))
  first = run()  # compiles, and is slower than the others
  passes: list[Pass] = [run() for _ in range(repeats)]
  speed = summarise([p.tokens_per_second for p in passes])
  row = DecodingTiming(
    decoder=name,
    batch_size=len(prompts),
    tokens=first.tokens,
    nfe=sum(r.nfe for r in first.results) / len(prompts),
    tokens_per_second=speed.median,
    low=speed.low,
    high=speed.high,
    prefill_seconds=summarise([p.prefill_seconds for p in passes]).median,
    compile_seconds=decoder.compile_seconds,
    repeats=repeats,
    prompt_length=max(map(len, prompts)),
  )
  return row, [r.tokens for r in first.results]
