"""Where states and batches live: one device, a mesh with sharding rules, or pmap.

The steps of `train.step` know nothing of devices; the wrappers here put the same function on any
layout, and the parameters that come out agree (a test says so).
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sbdjax.errors import UsageError
from sbdjax.kernels import sharded
from sbdjax.train.state import map_with_names

# The batch is cut over the first two; `fsdp` differs from `data` in also cutting the parameters.
AXES = (*sharded.BATCH_AXES, sharded.HEAD_AXIS)
BATCH_SPEC = P(sharded.BATCH_AXES)

Rules = Sequence[tuple[str, P]]
# (regex over `state.leaf_names`, spec), first match wins, no match: replicated. A search, not a
# full match, so `opt_state/.../mu/layers/attn/q_kernel` follows its parameter. Axes: V vocab,
# D model, N layers, H heads, Dh head, F feed-forward.
RULES: Rules = (
  (r"(^|/)(embedding|head)$", P("tensor", "fsdp")),  # [V, D]
  (r"(^|/)[qkv]_kernel$", P(None, "fsdp", "tensor", None)),  # [N, D, H, Dh]
  (r"(^|/)[qkv]_bias$", P(None, "tensor", None)),  # [N, H, Dh]
  (r"(^|/)o_kernel$", P(None, "tensor", None, "fsdp")),  # [N, H, Dh, D]
  (r"(^|/)(gate|up)_kernel$", P(None, "fsdp", "tensor")),  # [N, D, F]
  (r"(^|/)down_kernel$", P(None, "tensor", "fsdp")),  # [N, F, D]
  (r"(^|/)(mix|out)_kernel$", P("fsdp", "tensor")),  # [3 D or D, D]
  # Of adapters: cut as the axis of their projection, never along the rank r.
  (r"(^|/)(q|k|v|gate|up)_adapter_a$", P(None, "fsdp", None)),  # [N, D, r]
  (r"(^|/)(q|k|v|gate|up)_adapter_b$", P(None, None, "tensor")),  # [N, r, H Dh or F]
  (r"(^|/)(o|down)_adapter_a$", P(None, "tensor", None)),  # [N, H Dh or F, r]
  (r"(^|/)(o|down)_adapter_b$", P(None, None, "fsdp")),  # [N, r, D]
)


@dataclasses.dataclass(frozen=True)
class ParallelConfig:
  """How devices are used.

  Attributes:
    mode: "mesh" (default: jit over a mesh; FSDP and tensor parallel) or "pmap" (one host, data
      parallel).
    data: devices that share the batch and hold whole parameters; -1: all that are left.
    fsdp: devices that share the batch and also cut the parameters between them.
    tensor: devices that cut heads and feed-forward width between them.
    distributed: several processes train together; see `initialize_distributed`.
  """

  mode: str = "mesh"
  data: int = -1
  fsdp: int = 1
  tensor: int = 1
  distributed: bool = False

  def __post_init__(self) -> None:
    if self.mode not in LAYOUTS:
      raise UsageError(f"parallel.mode={self.mode!r}: choose one of {tuple(LAYOUTS)}")
    for name in AXES:
      size = getattr(self, name)
      if size < 1 and not (name == "data" and size == -1):
        raise UsageError(f"parallel.{name} must be at least 1, got {size}")
    if self.mode == "pmap" and (self.fsdp, self.tensor) != (1, 1):
      raise UsageError(
        'parallel.mode="pmap" only cuts the batch: set parallel.fsdp=1 and parallel.tensor=1, '
        'or parallel.mode="mesh"'
      )


class Layout(NamedTuple):
  """Steps and arrays on devices, whatever the mode.

  Attributes:
    batch_shards: how many ways the batch is cut; divides every microbatch.
    shardings: abstract pytree -> pytree of shardings its arrays are kept in.
    place: host batch (this process's rows) -> device batch.
    compile_train: (train_step, abstract state) -> (state, batch) -> (state, metrics); the state
      is donated.
    compile_eval: (eval_step, abstract params) -> (params, batch, key) -> metrics.
  """

  batch_shards: int
  shardings: Callable[[Any], Any]
  place: Callable[[dict[str, np.ndarray]], dict[str, Any]]
  compile_train: Callable[[Callable, Any], Any]
  compile_eval: Callable[[Callable, Any], Callable]


def initialize_distributed() -> None:
  """Joins this process to the others; before anything else asks JAX for devices.

  JAX finds the others itself under Slurm, Open MPI, Kubernetes and on Cloud TPU. Elsewhere the
  environment says: JAX_COORDINATOR_ADDRESS (host:port of process 0), JAX_NUM_PROCESSES,
  JAX_PROCESS_ID.

  Raises:
    UsageError: neither tells who the others are.
  """
  names = {"num_processes": "JAX_NUM_PROCESSES", "process_id": "JAX_PROCESS_ID"}
  try:
    given: dict[str, Any] = {
      key: int(os.environ[name]) for key, name in names.items() if name in os.environ
    }
    jax.distributed.initialize(**given)
  except ValueError as e:
    raise UsageError(
      f"parallel.distributed=True, but the processes cannot find each other ({e}): set "
      f"JAX_COORDINATOR_ADDRESS, {' and '.join(names.values())}"
    ) from e


def check_batch(batch_size: int, accumulation: int, shards: int) -> None:
  """Raises UsageError unless every device gets the same number of examples a microbatch."""
  unit = accumulation * shards
  if batch_size < 1 or batch_size % unit:
    below, above = batch_size // unit * unit, (batch_size // unit + 1) * unit
    choices = f"{below} or {above}" if below > 0 else f"{above}"
    raise UsageError(
      f"a batch of {batch_size} cannot be shared by {shards} device(s) in {accumulation} "
      f"microbatch(es): set the batch size to a multiple of {unit}, such as {choices}"
    )


def make_mesh(config: ParallelConfig, devices: Sequence[Any] | None = None) -> Mesh:
  """The (data, fsdp, tensor) mesh over `devices` (default: all).

  Raises:
    UsageError: the axes do not multiply to the number of devices.
  """
  devices = jax.devices() if devices is None else devices
  fixed = config.fsdp * config.tensor
  data = len(devices) // fixed if config.data == -1 else config.data
  if data * fixed != len(devices):
    raise UsageError(
      f"parallel.data x fsdp x tensor = {config.data} x {config.fsdp} x {config.tensor} does not "
      f"make up the {len(devices)} device(s) present: change them, or set parallel.data=-1"
    )
  shape = (data, config.fsdp, config.tensor)
  # Eight ways of a slice of 4 x 4 x 4 cut one of its axes in two, which `jax.make_mesh` refuses.
  grid = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
  # Auto: under explicit axis types embedding look-ups fail.
  return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def spec_for(name: str, shape: tuple[int, ...], mesh: Mesh, rules: Rules = RULES) -> P:
  """The first matching rule's spec; axes that do not divide their dimension are left out.

  Raises:
    UsageError: a rule names more dimensions than the array has.
  """
  for pattern, spec in rules:
    if not re.search(pattern, name):
      continue
    if len(spec) > len(shape):
      raise UsageError(f"sharding rule {pattern!r} -> {spec} does not fit {name} of shape {shape}")
    sizes = [mesh.shape[axis] if axis else 1 for axis in spec]
    return P(
      *(a if d % n == 0 else None for a, n, d in zip(spec, sizes, shape[: len(spec)], strict=True))
    )
  return P()


def shardings(abstract: Any, mesh: Mesh, rules: Rules = RULES) -> Any:
  """NamedShardings for every leaf of an abstract state (or part of one)."""
  return map_with_names(
    lambda name, leaf: NamedSharding(mesh, spec_for(name, leaf.shape, mesh, rules)), abstract
  )


def jit_step(step: Callable, mesh: Mesh, state_shardings: Any) -> Callable:
  """(state, batch) -> (state, metrics) over a mesh; the state is donated, metrics replicated."""
  batch, replicated = NamedSharding(mesh, BATCH_SPEC), NamedSharding(mesh, P())
  return jax.jit(
    sharded.within(mesh, step),
    in_shardings=(state_shardings, batch),
    out_shardings=(state_shardings, replicated),
    donate_argnums=(0,),
  )


def pmap_step(step: Callable, devices: Sequence[Any] | None = None) -> Callable:
  """(state, batch [devices, B / devices, ...]) -> (state, metrics), one process, data parallel.

  The state is not stacked: it goes in and comes out with its own shapes, like a single device's,
  so checkpoints do not depend on the mode. The reduction over "batch" inside `step` is what
  makes `out_axes=None` true.
  """
  # Positional call only: pmap ignores donation for keyword arguments.
  return jax.pmap(
    functools.partial(step, axis_name="batch"),
    axis_name="batch",
    in_axes=(None, 0),
    out_axes=None,
    devices=devices,
    donate_argnums=(0,),
  )


def _mesh_layout(config: ParallelConfig, devices: Sequence[Any] | None) -> Layout:
  mesh = make_mesh(config, devices)
  batch_sharding, replicated = NamedSharding(mesh, BATCH_SPEC), NamedSharding(mesh, P())

  def compile_eval(step, abstract_params):
    placed = shardings(abstract_params, mesh)
    in_shardings = (placed, batch_sharding, replicated)
    run = sharded.within(mesh, step)
    return jax.jit(run, in_shardings=in_shardings, out_shardings=replicated)

  return Layout(
    batch_shards=mesh.shape["data"] * mesh.shape["fsdp"],
    shardings=lambda abstract: shardings(abstract, mesh),
    place=functools.partial(jax.make_array_from_process_local_data, batch_sharding),
    compile_train=lambda step, abstract: jit_step(step, mesh, shardings(abstract, mesh)),
    compile_eval=compile_eval,
  )


def _pmap_layout(config: ParallelConfig, devices: Sequence[Any] | None) -> Layout:
  if jax.process_count() > 1:
    raise UsageError('parallel.mode="pmap" is for one process: set parallel.mode="mesh"')
  devices = jax.local_devices() if devices is None else list(devices)
  if config.data not in (-1, len(devices)):
    raise UsageError(
      f"parallel.data={config.data} but {len(devices)} device(s) are present: set parallel.data=-1"
    )
  # The very mesh pmap puts its outputs on, so that the first update is not compiled twice.
  mesh = jax.make_mesh((len(devices),), ("batch",), (AxisType.Auto,), devices=devices)
  replicated = NamedSharding(mesh, P())

  def compile_eval(step, abstract_params):
    del abstract_params
    return jax.pmap(
      functools.partial(step, axis_name="batch"),
      axis_name="batch",
      in_axes=(None, 0, None),
      out_axes=None,
      devices=devices,
    )

  def place(batch):
    return jax.tree.map(lambda x: x.reshape(len(devices), -1, *x.shape[1:]), batch)

  return Layout(
    batch_shards=len(devices),
    shardings=lambda abstract: jax.tree.map(lambda _: replicated, abstract),
    place=place,
    compile_train=lambda step, abstract: pmap_step(step, devices),
    compile_eval=compile_eval,
  )


LAYOUTS: dict[str, Callable[[ParallelConfig, Sequence[Any] | None], Layout]] = {
  "mesh": _mesh_layout,
  "pmap": _pmap_layout,
}


def make_layout(config: ParallelConfig, devices: Sequence[Any] | None = None) -> Layout:
  """The layout of `config` over `devices` (default: all).

  Raises:
    UsageError: the axes do not fit the devices.
  """
  return LAYOUTS[config.mode](config, devices)
