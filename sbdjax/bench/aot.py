"""Our kernels compiled for devices that are not here, and what their compilers say of them.

`jax.export` lets kernels pass that the device's compiler refuses (layouts, memory); only compiling
to the end shows them, and the registers that had to be spilled.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from sbdjax.bench import attention, decode_attention
from sbdjax.bench.attention import AttentionShape
from sbdjax.bench.rivals import RIVALS
from sbdjax.bench.timing import Program, compile_for
from sbdjax.kernels import sharded

# Llama 3.1 8B's attention.
SHAPE = AttentionShape(num_heads=32, num_kv_heads=8, head_dim=128, dtype="bfloat16")
BLOCK_SIZE = 16


@dataclasses.dataclass(frozen=True)
class Job:
  """A program to compile.

  Attributes:
    name: in records.
    build: backend -> (function, abstract arguments).
  """

  name: str
  build: Callable[[str], tuple[Callable, tuple[Any, ...]]]


def _training(case: str, length: int, shape: AttentionShape) -> Job:
  """Forward with backward, the plan of the mask included, for a traced block size."""

  def build(backend: str) -> tuple[Callable, tuple[Any, ...]]:
    rival = RIVALS[backend]
    plan = attention.planner(rival, case, length, BLOCK_SIZE)
    run = attention.program(rival, "forward+backward")
    fn = lambda q, k, v, d_o, block_size: run(q, k, v, d_o, plan(block_size))
    queries = attention.cases.TRAINING[case].queries(length, BLOCK_SIZE)
    arrays = jax.eval_shape(lambda: attention.operands(shape, queries, rival.time_major))
    return fn, (*arrays, jax.ShapeDtypeStruct((), jnp.int32))

  return Job(f"{case} L={length} Dh={shape.head_dim}", build)


def _decoding(block_size: int, capacity: int, shape: AttentionShape) -> Job:
  def build(backend: str) -> tuple[Callable, tuple[Any, ...]]:
    return decode_attention.program(backend, block_size), tuple(
      decode_attention.shapes(shape, block_size, capacity, layers=2)
    )

  return Job(f"decode k={block_size} cache={capacity} batch={shape.batch}", build)


JOBS = (
  _training("sbd", 4096, SHAPE),
  _training("jacobi_clean_window", 4096, SHAPE),
  _training("causal", 1000, dataclasses.replace(SHAPE, head_dim=64)),  # no whole tiles
  _decoding(1, 8192, SHAPE),
  _decoding(16, 8192, dataclasses.replace(SHAPE, batch=8)),
  _decoding(64, 8192, SHAPE),
)


def compile_job(job: Job, backend: str, device: Any) -> Program:
  """Compiles for `device`, which need not be here."""
  mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,), devices=[device])
  fn, args = job.build(backend)
  placed = NamedSharding(mesh, P())
  placed_args = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed) for x in args]
  return compile_for(jax.jit(sharded.within(mesh, fn)), *placed_args)


def bytes_accessed(program: Program) -> int | None:
  """Bytes that a program moves as XLA's cost model counts them; None where it does not say.

  Arguments and results, each once, are the least (the roofline). What a kernel reads of a buffer
  that it walks itself is counted only where the kernel says so.
  """
  costs = program.call.cost_analysis() or {}
  return int(costs["bytes accessed"]) if "bytes accessed" in costs else None


class Kernel(NamedTuple):
  """What a compiler says of one kernel.

  Attributes:
    name: of the kernel.
    numbers: of a GPU kernel `registers` of a thread, `spill_bytes` and `shared_bytes`; of a TPU
      kernel `bundles` (instructions) and how many of them hold a `vector_spills` or `vector_fills`.
    problem: what is wrong with it, or "".
  """

  name: str
  numbers: dict[str, int]
  problem: str


def read_ptxas(folder: pathlib.Path) -> list[Kernel]:
  """Kernels in a folder that Mosaic GPU dumped to (MOSAIC_GPU_DUMP_PTXAS=1)."""
  found = []
  for path in sorted(folder.glob("*.ptxas")):
    said, numbers = path.read_text(), {}
    for name, pattern in (
      ("registers", r"Used (\d+) registers"),
      ("stores", r"(\d+) bytes spill stores"),
      ("loads", r"(\d+) bytes spill loads"),
    ):
      numbers[name] = sum(int(n) for n in re.findall(pattern, said))
    spilled = numbers.pop("stores") + numbers.pop("loads")
    numbers["spill_bytes"] = spilled
    resources = path.with_name(path.stem + ".resources.txt")
    if resources.exists() and (
      scratch := re.search(r"smem_scratch_bytes=(\d+)", resources.read_text())
    ):
      numbers["shared_bytes"] = int(scratch[1])
    name = re.sub(r"_\d+$", "", path.stem)  # numbered by the dump
    found.append(Kernel(name, numbers, f"{spilled} bytes spilled" if spilled else ""))
  return found


def read_bundles(folder: pathlib.Path) -> list[Kernel]:
  """Pallas kernels in a folder that the TPU compiler dumped to (--xla_jf_dump_to, _llo_text).

  A tile of 256 x 256 scores alone fills a TPU's registers, so kernels with large tiles keep part of
  it in vector memory on purpose: spills are counted, and no problem. Running out of vector memory
  is one, and does not compile.
  """
  found = []
  for path in sorted(folder.glob("*-final_bundles.txt")):
    label = re.fullmatch(r"\d+-(.+?)(?:\.\d+)?-\d+-final_bundles\.txt", path.name)
    # Beside it lies an analysis that names what was compiled; fusions of XLA's own have one, too.
    beside = re.sub(r"-\d+-final_bundles\.txt", "-*-schedule-analysis_final*", path.name)
    kernel = any("tpu_custom_call" in x.read_text() for x in folder.glob(beside))
    if label is None or label[1] == _WHOLE_PROGRAM or not kernel:
      continue
    lines = [x for x in path.read_text().splitlines() if re.match(r"\s*0x[0-9a-f]+\s", x)]
    numbers = {"bundles": len(lines)}
    for field, op in (("vector_spills", "vst"), ("vector_fills", "vld")):
      pattern = re.compile(op + r" \[vmem:\[#\w+_spill")
      numbers[field] = sum(bool(pattern.search(x)) for x in lines)
    # Derivatives' names are "transpose_jvp_NAME__".
    name = re.sub(r"^(?:transpose_|jvp_)+|_+$", "", label[1])
    found.append(Kernel(name, numbers, "" if lines else "the dump holds no instructions"))
  return found


_WHOLE_PROGRAM = "TLP"
