"""How long programs of a model take to compile; nothing of the model's size is ever allocated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sbdjax.bench.timing import Program, compile_for, sampler_programs
from sbdjax.decode.base import Limits
from sbdjax.decode.method import Method
from sbdjax.lm import LM
from sbdjax.sigma_lm import SigmaLM


@dataclasses.dataclass(frozen=True)
class CompileTiming:
  """One measurement.

  Attributes:
    program: what was compiled.
    num_layers: of the model.
    seconds: wall-clock of tracing, lowering and compiling.
    cpu_seconds: processor time of the same, over all threads.
    temporary_bytes: what the program would need beside arguments and results.
  """

  program: str
  num_layers: int
  seconds: float
  cpu_seconds: float
  temporary_bytes: int


def _row(name: str, num_layers: int, programs: Sequence[Program]) -> CompileTiming:
  return CompileTiming(
    name,
    num_layers,
    sum(p.compile_seconds for p in programs),
    sum(p.compile_cpu_seconds for p in programs),
    max(p.temporary_bytes for p in programs),
  )


def time_update(
  name: str, num_layers: int, step: Callable, state: Any, batch: dict
) -> CompileTiming:
  """Compiles a jitted update for an abstract state and a batch, of which only shapes matter."""
  shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)
  return _row(name, num_layers, [compile_for(step, state, shapes)])


def time_sampler(
  name: str,
  lm: LM | SigmaLM,
  method: Method,
  params: Any,
  limits: Limits,
  *,
  batch_size: int,
  prompt_length: int,
) -> CompileTiming:
  """Compiles a sampler, the prompt's forward and the loop, for abstract parameters."""
  prompt = (
    jax.ShapeDtypeStruct((batch_size, prompt_length), jnp.int32),
    jax.ShapeDtypeStruct((batch_size,), jnp.int32),
    jax.eval_shape(lambda: jax.random.split(jax.random.key(0), batch_size)),
  )
  programs = sampler_programs(lm, method, params, limits, *prompt)
  return _row(name, lm.config.num_layers, programs)
