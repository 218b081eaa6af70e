"""What the Hopper kernels share: shared-memory shapes, masking, products, the order of the tiles."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from sbdjax import pytree
from sbdjax.errors import UsageError
from sbdjax.kernels import tile_map

NEEDS_JAX = (0, 11)
DTYPES = (jnp.bfloat16, jnp.float16)
BLOCK = 128  # queries, and keys, of a tile of the map
WARPGROUP_ROWS = 64  # rows of a WGMMA
COMPUTE = BLOCK // WARPGROUP_ROWS  # warpgroups that compute; one more loads
LOG2_E = math.log2(math.e)

Array = jax.Array
Ref = Any


@pytree.dataclass
class GPUPlan:
  """A mask prepared once per forward for the GPU kernels and shared by all layers.

  Attributes:
    map: tiles of 128 queries x 128 keys.
    row_order: int32 [B or 1, Tq], query tiles in the order to start them: those that visit the most
      key tiles first, so that no long one is left for the end.
    col_order: int32 [B or 1, Tk], key tiles likewise.
  """

  map: tile_map.TileMap
  row_order: Array
  col_order: Array


def prepare(tiles: tile_map.TileMap) -> GPUPlan:
  return GPUPlan(tiles, _longest_first(tiles.row_count), _longest_first(tiles.col_count))


def _longest_first(count: Array) -> Array:
  return jnp.argsort(-count, axis=-1, stable=True).astype(jnp.int32)


def check_jax() -> None:
  """Raises UsageError where the installed JAX is older than the kernels need."""
  if jax.__version_info__[:2] < NEEDS_JAX:
    raise UsageError(
      f"attention.backend=pallas_gpu needs JAX {'.'.join(map(str, NEEDS_JAX))} or newer, this is "
      f"{jax.__version__}: upgrade JAX or set attention.backend=xla"
    )


def check(dtype: Any, head_dim: int) -> None:
  """Raises UsageError, in one line, for what the kernels cannot do."""
  check_jax()
  if jnp.dtype(dtype) not in map(jnp.dtype, DTYPES):
    raise UsageError(
      f"attention.backend=pallas_gpu computes in bfloat16 or float16, not {jnp.dtype(dtype).name}: "
      "change the compute dtype or set attention.backend=xla"
    )
  if head_dim != 128 and (head_dim > 64 or head_dim % 8):
    raise UsageError(
      "attention.backend=pallas_gpu has kernels for a head_dim of 128, and of up to 64 in eights, "
      f"not {head_dim}: set attention.backend=xla"
    )


def width(head_dim: int) -> int:
  """Columns of a head in shared memory."""
  return 64 if head_dim <= 64 else 128


def columns(head_dim: int) -> Any:
  """The columns of a head in device memory, `width` of them.

  Columns after the last are copied in as zeros and not copied out, as rows are. A constant start
  would be refused, so it is one of the running program.
  """
  if head_dim == width(head_dim):
    return slice(None)
  return pl.ds(lax.axis_index("wg") * 0, width(head_dim))


def eights(x: Array) -> Array:
  """`x` [..., rows, columns] with zeros for rows up to a multiple of eight, as TMA cuts them."""
  missing = -x.shape[-2] % 8
  return jnp.pad(x, (*(x.ndim - 2) * ((0, 0),), (0, missing), (0, 0))) if missing else x


def matrix(shape: tuple[int, ...], dtype: Any) -> Any:
  """Shared memory for matrices [..., rows, columns] as TMA writes and WGMMA reads them."""
  tiling = plgpu.TilingTransform((8, 128 // jnp.dtype(dtype).itemsize))
  return plgpu.SMEM(shape, dtype, transforms=(tiling, plgpu.SwizzleTransform(128)))


def rows_of(x_M: Array, shape: tuple[int, ...]) -> Array:
  """One value a row, over the columns."""
  return lax.broadcast_in_dim(x_M, shape, [0])


def columns_of(x_N: Array, shape: tuple[int, ...]) -> Array:
  """One value a column, over the rows."""
  return lax.broadcast_in_dim(x_N, shape, [1])


def visible(bounds: Sequence[Array], keys: Array) -> Array:
  """Which of `keys` lie in [start, end) of one of the intervals; all arrays of one shape.

  By the distance to the nearest edge: integers are cheaper to keep than truth values, of which a
  thread has seven registers. One interval after the other, so that few are kept at a time.
  """
  intervals = zip(bounds[::2], bounds[1::2], strict=True)
  inside = (jnp.minimum(keys - start, end - 1 - keys) for start, end in intervals)
  return functools.reduce(jnp.maximum, inside) >= 0


def read(ref: Ref, layout: Any, *, optimized: bool = True) -> Array:
  """What memory holds, as registers of that layout; `optimized` as of `plgpu.load`."""
  load: Any = plgpu.load  # that of JAX 0.10, where no kernel runs, asks for an index too
  return load(ref, layout=layout, optimized=optimized)


def product(a: Ref, b: Ref) -> Array:
  """a @ b of two matrices in shared memory, float32."""

  def compute(acc_ref):
    plgpu.wgmma(acc_ref, a, b)
    return acc_ref[...]

  return pl.run_scoped(compute, plgpu.ACC((a.shape[0], b.shape[1]), jnp.float32))


class Stream(NamedTuple):
  """Tiles on their way through shared memory, a ring of `stages` slots.

  Attributes:
    buffers: shared memory [stages, ...] of what arrives together.
    ready: barriers [stages]: the tile of a slot has landed.
    free: barriers [stages]: every computing warpgroup is done with it.
  """

  buffers: tuple[Ref, ...]
  ready: Ref
  free: Ref


def barriers(stages: int, *, pieces: int = 1, readers: int = COMPUTE) -> tuple[Any, Any]:
  """(`ready`, `free`) of a stream whose tiles arrive in `pieces` and are read by `readers`."""
  ready = plgpu.Barrier(num_arrivals=pieces, num_barriers=stages)
  return ready, plgpu.Barrier(num_arrivals=readers, num_barriers=stages)


def load(
  steps: Array,
  stages: int,
  streams: Sequence[Stream],
  sources: Callable[[Array], Sequence[Sequence[Ref]]],
) -> None:
  """What the loading warpgroup does: keeps the streams `stages` steps ahead.

  Args:
    steps: number of steps; a computing warpgroup takes each tile once per step, in order.
    stages: slots of a ring.
    streams: in the order in which a step needs them.
    sources: step -> for each stream, the pieces of device memory that fill its buffers.
  """
  plgpu.set_max_registers(40, action="decrease")

  @pl.loop(0, steps)
  def _step(i):
    slot = lax.rem(i, stages)
    for stream, pieces in zip(streams, sources(i), strict=True):
      pl.when(i >= stages)(functools.partial(plgpu.barrier_wait, stream.free.at[slot]))
      for piece, buffer in zip(pieces, stream.buffers, strict=True):
        plgpu.copy_gmem_to_smem(piece, buffer.at[slot], stream.ready.at[slot])

  # A barrier may not go before its last completion has been seen.
  @pl.loop(jnp.maximum(steps - stages, 0), steps)
  def _drain(i):
    for stream in streams:
      plgpu.barrier_wait(stream.free.at[lax.rem(i, stages)])


def take(stream: Stream, i: Array) -> Array:
  """Waits for the tile of step `i`; returns its slot."""
  slot = lax.rem(i, stream.buffers[0].shape[0])
  plgpu.barrier_wait(stream.ready.at[slot])
  return slot


def give_back(stream: Stream, slot: Array) -> None:
  plgpu.barrier_arrive(stream.free.at[slot])


def operand(x: Array, scratch: Ref | None) -> Array | Ref:
  """`x` as the left operand of a product: the registers themselves, or a copy in `scratch`."""
  if scratch is None:
    return x
  scratch[...] = x
  plgpu.commit_smem()
  return scratch
