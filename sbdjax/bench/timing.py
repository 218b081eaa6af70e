"""Times compiled programs, and samplers: compiling, the prompt's forward, and decoding, each apart."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from sbdjax.decode import registry
from sbdjax.decode.base import Limits
from sbdjax.decode.generate import Result, batches, padded_width, results_of, row_keys
from sbdjax.decode.method import Method
from sbdjax.decode.prepared import Prepared
from sbdjax.decode.programs import Programs
from sbdjax.lm import LM
from sbdjax.nn import prepare
from sbdjax.sigma_lm import SigmaLM


class Pass(NamedTuple):
  """One run over all prompts.

  Attributes:
    results: in the order of the prompts.
    prefill_seconds: wall-clock of the prompts' forwards, summed over batches.
    decode_seconds: wall-clock of everything after them.
  """

  results: list[Result]
  prefill_seconds: float
  decode_seconds: float

  @property
  def tokens(self) -> int:
    """Valid tokens: EOS included, nothing after it."""
    return sum(r.valid for r in self.results)

  @property
  def tokens_per_second(self) -> float:
    """Valid tokens / decode_seconds."""
    return self.tokens / self.decode_seconds


class Summary(NamedTuple):
  """Median, smallest and largest of repeated measurements."""

  median: float
  low: float
  high: float


def summarise(values: Sequence[float]) -> Summary:
  """Raises ValueError for no values."""
  return Summary(float(np.median(values)), float(min(values)), float(max(values)))


class Program(NamedTuple):
  """A function compiled for given shapes.

  Attributes:
    call: runs it.
    compile_seconds: wall-clock of tracing, lowering and compiling. Near 0 for a program that the
      persistent compilation cache already held.
    compile_cpu_seconds: processor time of the same, over all threads of the process: what can be
      compared where other work shares the cores.
    memory_bytes: arguments, results and temporaries, what both share counted once, as XLA planned
      them; nothing that other programs keep on the device.
    temporary_bytes: the temporaries alone.
  """

  call: jax.stages.Compiled
  compile_seconds: float
  compile_cpu_seconds: float
  memory_bytes: int
  temporary_bytes: int


def compile_for(fn: Any, *args: Any) -> Program:
  """Compiles the jitted `fn` for arguments of these shapes; ShapeDtypeStructs will do.

  Prepared parameters among them have a say in how (`nn.prepare.compiler_options`).
  """
  wall, cpu = time.perf_counter(), time.process_time()
  call = fn.lower(*args).compile(prepare.compiler_options(args))
  wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
  memory = call.memory_analysis()
  held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
  temporary = memory.temp_size_in_bytes
  return Program(call, wall, cpu, held + temporary, temporary)


def seconds_a_call(
  run: Callable[[], Any],
  repeats: int,
  *,
  lasting: float = 0.0,
  wait: Callable = jax.block_until_ready,
) -> Summary:
  """Seconds of one `run()`, over `repeats` measurements after a warm-up.

  Args:
    run: starts work and returns what `wait` waits for.
    repeats: measurements.
    lasting: seconds a measurement should take. It is then of several calls, of which only the last
      is waited for: on an accelerator they are queued one after the other, so that starting
      them from Python costs nothing. 0: one call a measurement.
    wait: blocks until what it is given is there.
  """

  def measure(calls: int) -> float:
    start = time.perf_counter()
    last = None
    for _ in range(calls):
      last = run()
    wait(last)
    return (time.perf_counter() - start) / calls

  wait(run())
  calls = max(1, min(_MAX_CALLS, math.ceil(lasting / measure(1)))) if lasting else 1
  return summarise([measure(calls) for _ in range(repeats)])


_MAX_CALLS = 1000


class TimedDecoder:
  """Decodes prompts with one model, compiled in two parts: the prompt's forward, and the loop.

  The method is an argument of both programs, prompts are padded to the same widths and parameters
  are prepared once for each object given, as by `decode.generate.Decoder`. Rows and the limit are
  not rounded up: nothing is measured that was not asked for.

  Attributes:
    compile_seconds: time spent compiling so far.
  """

  def __init__(self, lm: LM | SigmaLM, limits: Limits):
    """For `lm`; `limits` hold for every row."""
    self._lm, self._limits = lm, limits
    # All of them: one that was dropped between its turns would be timed in its first execution, which is slow.
    self._programs, self._prepared = Programs(keep=None), Prepared(lm)
    self.compile_seconds = 0.0

  def run(
    self,
    method: Method,
    params: Any,
    prompts: Sequence[Sequence[int]],
    key: jax.Array,
    batch_size: int = 1,
    numbers: Sequence[int] | None = None,
  ) -> Pass:
    """Decodes all prompts, `batch_size` at a time; row i uses `fold_in(key, numbers[i])`.

    The last batch is filled up with its last prompt, whose extra results are dropped.

    Args:
      method: how, like `SBD(block_size=8)`.
      params: of the model.
      prompts: token ids.
      key: a typed key.
      batch_size: prompts decoded together; 0: all.
      numbers: of each prompt; None: its place, from 0 on.

    Raises:
      UsageError: the model cannot be decoded this way, or prompts are missing.
    """
    registry.check_model(method, self._lm)
    results, prefill, decode = [], 0.0, 0.0
    width = self.width(method, prompts)
    cut = functools.partial(batches, allow_empty=method.any_order, width=width, numbers=numbers)
    for batch in cut(prompts, key, batch_size, self._limits):
      prepared = self._prepared(method, params, len(batch.prompt_len_B))
      *args, one, row_B = batch.arguments(method, prepared)
      args = jax.device_put((*args, row_keys(one, row_B)))
      init, loop = self._programs.find(args, functools.partial(self._compile, args))
      start = time.perf_counter()
      state = jax.block_until_ready(init(*args))
      middle = time.perf_counter()
      out = jax.block_until_ready(loop(*args[:3], state))
      end = time.perf_counter()
      prefill, decode = prefill + middle - start, decode + end - middle
      results += results_of(out, batch.rows, end - start, batch.size, method.counts_prefill)
    return Pass(results, prefill, decode)

  def width(self, method: Method, prompts: Sequence[Sequence[int]]) -> int:
    """Columns that prompts are padded to. Other widths are other programs."""
    return padded_width(method, self._lm, self._limits, prompts)

  def _compile(self, args: tuple) -> tuple[Callable, Callable]:
    programs = sampler_programs(self._lm, *args)
    self.compile_seconds += sum(p.compile_seconds for p in programs)
    first, loop = programs
    return first.call, loop.call


def sampler_programs(
  lm: LM | SigmaLM, method: Method, params: Any, limits: Limits, *prompt: Any
) -> tuple[Program, Program]:
  """Compiles the prompt's forward and the loop of `method`; nothing runs.

  Args:
    prompt: prompts [B, P], their lengths [B] and a key per row. Shapes and dtypes alone will do
      (`jax.ShapeDtypeStruct`), here and for `params`.

  Returns:
    Programs of (method, params, limits, *prompt) -> state, and of (method, params, limits, state)
    -> Generation.
  """

  def init(method, params, limits, *prompt):
    return method.sampler(lm, limits).init(params, *prompt)

  def loop(method, params, limits, state):
    sampler = method.sampler(lm, limits)
    going = lambda s: ~jax.numpy.all(sampler.done(s))
    return jax.lax.while_loop(going, functools.partial(sampler.step, params), state).out

  args = (method, params, limits)
  state = jax.eval_shape(init, *args, *prompt)
  return compile_for(jax.jit(init), *args, *prompt), compile_for(jax.jit(loop), *args, state)
