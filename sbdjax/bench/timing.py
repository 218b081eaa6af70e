"""Times compiled programs, and samplers: compiling, the prompt's forward, and decoding, each apart."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from sbdjax.decode.base import Sampler
from sbdjax.decode.generate import Result, pad_prompts, results_of


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
    """Valid tokens: EOS included, nothing behind it."""
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

  call: Callable
  compile_seconds: float
  compile_cpu_seconds: float
  memory_bytes: int
  temporary_bytes: int


def compile_for(fn: Any, *args) -> Program:
  """Compiles the jitted `fn` for arguments of these shapes; ShapeDtypeStructs will do."""
  wall, cpu = time.perf_counter(), time.process_time()
  call = fn.lower(*args).compile()
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
      is waited for: on an accelerator the others are queued behind each other, so that starting
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
  """A sampler compiled in two parts, the prompt's forward and the loop.

  Attributes:
    compile_seconds: time spent compiling so far.
  """

  def __init__(self, build: Callable[[Any], Sampler]):
    """`build(numbers) -> Sampler` is called while tracing: `numbers` may change at no cost."""

    def loop(numbers, params, state):
      sampler = build(numbers)
      going = lambda s: ~jax.numpy.all(sampler.done(s))
      return jax.lax.while_loop(going, functools.partial(sampler.step, params), state).out

    self._init = jax.jit(lambda numbers, params, *prompt: build(numbers).init(params, *prompt))
    self._loop = jax.jit(loop)
    self._compiled: dict[str, tuple[Callable, ...]] = {}
    self.compile_seconds = 0.0

  def run(
    self,
    params,
    prompts: Sequence[Sequence[int]],
    key: jax.Array,
    numbers: Any = None,
    batch_size: int = 1,
  ) -> Pass:
    """Decodes all prompts, `batch_size` at a time; row i uses `fold_in(key, i)`.

    The last batch is filled up with its last prompt, whose extra results are dropped.
    """
    padded, lengths = pad_prompts(prompts)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, np.arange(len(prompts)))
    results, prefill, decode = [], 0.0, 0.0
    for first in range(0, len(prompts), batch_size):
      rows = np.minimum(np.arange(first, first + batch_size), len(prompts) - 1)
      args = jax.device_put((numbers, params, padded[rows], lengths[rows], keys[rows]))
      init, loop = self._executables(args)
      start = time.perf_counter()
      state = jax.block_until_ready(init(*args))
      middle = time.perf_counter()
      out = jax.block_until_ready(loop(args[0], params, state))
      end = time.perf_counter()
      prefill, decode = prefill + middle - start, decode + end - middle
      results += results_of(out, min(batch_size, len(prompts) - first), end - start)
    return Pass(results, prefill, decode)

  def _executables(self, args):
    signature = str(jax.tree.map(jax.typeof, args))
    if signature not in self._compiled:
      programs = self.programs(*args)
      self._compiled[signature] = tuple(p.call for p in programs)
      self.compile_seconds += sum(p.compile_seconds for p in programs)
    return self._compiled[signature]

  def programs(self, *args) -> tuple[Program, Program]:
    """Compiles the prompt's forward and the loop for (numbers, params, prompt, lengths, keys).

    Shapes and dtypes alone will do (`jax.ShapeDtypeStruct`): nothing runs.
    """
    state = jax.eval_shape(self._init, *args)
    return compile_for(self._init, *args), compile_for(self._loop, args[0], args[1], state)
