"""Attention in plain XLA: which of two ways to compute it, by sizes known before the program runs.

xla_tiles   the mask's static tiles, unrolled: short texts, small caches
xla_loop    loops over the tiles that are needed: long texts, and the used part of a cache
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from sbdjax import masks, pytree
from sbdjax.kernels import tile_map, xla_loop, xla_tiles
from sbdjax.kernels.parts import KVPart
from sbdjax.kernels.xla_loop import Visits

# Texts of up to this many (query, key) pairs take unrolled tiles: on two cores these are faster by the
# clock at every length (one product after the other uses both), though loops take less processor
# time. Beyond it their scores would take too much memory.
MAX_PAIRS = 2**23

# Windows up to this many tokens are one tile of queries, and read a cache in chunks: as many slots
# as stay in a core's own cache, keys and values and their copies, and at most a quarter of all.
# Caches of fewer bytes are read whole: running a loop costs more than it saves.
MAX_WINDOW = 64
CHUNKS = (64, 128, 256, 512)
_CHUNK_BYTES = 256 * 1024
_MIN_CACHE_BYTES = 256 * 1024
# A cache used beyond this share is read at once after all: products over all of it use both cores,
# a loop over chunks one.
_MOSTLY = 0.5

# Queries and keys in a tile of longer texts. Less of a small tile is hidden; of a large one, less
# of the time goes into running the loop.
_FEW_QUERIES, _SMALL_BLOCK, _BLOCK = 2048, 64, 128


@pytree.dataclass
class XLAPlan:
  """A mask prepared once per forward, for every way that `attend` may take.

  XLA drops what is not used.

  Attributes:
    tiles: for `xla_tiles`; None where there are too many pairs.
    loops: for `xla_loop`, the visits of each part: under the slots in a chunk of the cache for
      windows, under 0 for longer texts.
  """

  tiles: xla_tiles.TilesPlan | None
  loops: dict[int, tuple[Visits, ...]]


def plan(mask: masks.Mask, num_queries: int, num_keys: int) -> XLAPlan:
  """Prepares `mask` for `attend` on T queries and S keys.

  Where S > T, the parts are the S - T slots of a cache and the T new keys; for caches that are read
  whole, any others will do.
  """
  slots, window = num_keys - num_queries, num_queries <= MAX_WINDOW
  few = num_queries * num_keys <= MAX_PAIRS and (window or not slots)
  tiles = xla_tiles.plan(mask, num_queries, num_keys) if few else None
  if slots and window:
    blocks = {chunk: (num_queries, chunk) for chunk in CHUNKS if chunk <= slots}
  else:
    blocks = {} if few else {0: block_sizes(num_queries)}
  if not blocks:
    return XLAPlan(tiles, {})
  bounds = tile_map.interval_bounds(mask, num_queries, num_keys)
  new = (jnp.maximum(bounds - slots, 0), num_queries)
  ranges = ((jnp.minimum(bounds, slots), slots), new) if slots else (new,)

  def visits(block_q, block_k):
    return tuple(
      xla_loop.visits(inside, size, block_q=block_q, block_k=block_k) for inside, size in ranges
    )

  return XLAPlan(tiles, {key: visits(*sizes) for key, sizes in blocks.items()})


def block_sizes(num_queries: int) -> tuple[int, int]:
  """Queries and keys in a tile of a text longer than a window; all tiles are about as full."""
  block = _SMALL_BLOCK if num_queries <= _FEW_QUERIES else _BLOCK
  per_tile = -(-num_queries // -(-num_queries // block))
  return -(-per_tile // 8) * 8, block


def chunk_size(cache: KVPart) -> int:
  """Slots in a chunk of a cache [B, K, S, Dh] that a window reads; 0: all slots at once."""
  batch, kv_heads, slots, head_dim = cache.shape
  slot_bytes = batch * kv_heads * head_dim * cache.dtype.itemsize
  if slots < 2 * min(CHUNKS) or slots * slot_bytes < _MIN_CACHE_BYTES:
    return 0
  fitting = (c for c in CHUNKS if 4 * c <= slots and c * slot_bytes <= _CHUNK_BYTES)
  return max(fitting, default=min(CHUNKS))


def attend(
  q_BxHxTxDh: jax.Array, keys: tuple[KVPart, ...], values: tuple[KVPart, ...], plan: XLAPlan
) -> jax.Array:
  """Scaled dot-product attention, softmax in float32; a row that sees nothing gives zeros.

  Args:
    q_BxHxTxDh: queries; H is a multiple of K (grouped-query attention).
    keys: parts [B, K, S_i, Dh] whose concatenation along S is what the plan numbers. They are
      kept apart so that a cache is never copied to append this forward's keys to it.
    values: the same parts, of values.
    plan: from `plan`.

  Returns:
    [B, H, T, Dh] in the dtype of `q`.
  """
  chunk = 0 if 0 in plan.loops or not plan.loops else chunk_size(keys[0])
  if plan.tiles is None and chunk not in plan.loops:  # a very long cache of very few numbers
    chunk = max(plan.loops)
  tiles = plan.tiles
  if chunk not in plan.loops:
    assert tiles is not None  # `plan` makes loops wherever it makes no tiles
    return xla_tiles.attend(q_BxHxTxDh, keys, values, tiles)
  in_loops = lambda: xla_loop.attend(q_BxHxTxDh, keys, values, plan.loops[chunk])
  if tiles is None or not chunk:
    return in_loops()
  of_cache = plan.loops[chunk][0]  # of a window: one tile of queries
  return jax.lax.cond(
    of_cache.count[0] * of_cache.block_k > _MOSTLY * of_cache.num_keys,
    lambda: xla_tiles.attend(q_BxHxTxDh, keys, values, tiles),
    in_loops,
  )
