"""The forward of long prompts in chunks: as many as the longest of them takes, not as its padding does.

Only one chunk's activations exist at a time, so memory does not grow with the prompts, but for their
cache. For methods with an exact cache (`Method.cache_slots`), whose `init` takes what has been run.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from sbdjax import cache as kv_cache
from sbdjax.cache import KVCache
from sbdjax.decode.kept import Kept
from sbdjax.lm import LM
from sbdjax.masks import Cached

# Columns of a chunk. Half of the last one is padding on average; each reads the parameters again, but
# for several prompts at once. So many still read a cache as the forwards of a canvas do, on a CPU
# (`kernels.xla.MAX_WINDOW`).
CHUNK = 64


def worth_it(width: int) -> bool:
  """Whether prompts padded to so many columns are run in chunks."""
  return width >= 2 * CHUNK


def columns(longest: int, width: int) -> int:
  """Columns that are run for prompts of up to `longest` tokens, padded to `width`."""
  return -(-max(longest, 1) // CHUNK) * CHUNK if worth_it(width) else width


def begun(
  lm: LM, params: Any, prompt_BxP: jax.Array, prompt_len_B: jax.Array, capacity: int
) -> Kept:
  """All of the prompts but the last chunk of each, in a cache of `capacity` slots a row.

  A chunk is run while any prompt has more than one left.
  """
  batch, width = prompt_BxP.shape

  def left(cache: KVCache) -> jax.Array:
    return prompt_len_B - cache.length_B

  def chunk(cache: KVCache) -> KVCache:
    length_B, more_B = cache.length_B, left(cache) > CHUNK
    position_BxT = length_B[:, None] + jnp.arange(CHUNK)
    _, cache = lm.apply(
      params,
      jnp.take_along_axis(prompt_BxP, jnp.minimum(position_BxT, width - 1), axis=1),
      positions_BxT=position_BxT,
      mask=Cached(length_B=length_B, start_B=jnp.zeros_like(length_B), num_causal=CHUNK),
      cache=cache,
    )
    # What shorter prompts have written lies in scratch.
    return kv_cache.commit(cache, jnp.where(more_B, CHUNK, 0))

  empty = lm.init_cache(batch, capacity)
  cache = jax.lax.while_loop(lambda cache: jnp.any(left(cache) > CHUNK), chunk, empty)
  return Kept(cache, columns=CHUNK)
