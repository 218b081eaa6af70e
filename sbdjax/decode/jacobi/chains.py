"""One forward over several causal chains that continue the same text.

A chain is the last final token c and drafts behind it; all chains of a row start at the same place
and share the committed cache. They run as rows of a larger batch, each with its own copy of the
cache, or as branches of one sequence that do not see each other (a tree whose root is the cache).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from sbdjax import cache as kv_cache
from sbdjax.cache import KVCache
from sbdjax.errors import UsageError
from sbdjax.lm import LM, suppress
from sbdjax.masks import Branches, Cached


class Chains(NamedTuple):
  """How chains are run.

  Attributes:
    scratch: cache slots needed behind the text.
    run: (params, cache, chains_BxRxT) -> (logits_BxRxTxV, cache). The chains begin at slot
      `cache.length_B`, where c stands.
    keep: (cache of `run`, best_B, n_B) -> cache that holds the first `n_B` tokens of chain
      `best_B` as committed.
  """

  scratch: int
  run: Callable[..., tuple[jax.Array, KVCache]]
  keep: Callable[[KVCache, jax.Array, jax.Array], KVCache]


def as_batch(lm: LM, num_chains: int, columns: int) -> Chains:
  """Chains as rows of a batch `num_chains` times as large; one chain costs nothing extra."""
  del columns

  def run(params, cache: KVCache, chains_BxRxT):
    batch, _, columns = chains_BxRxT.shape
    spread = lambda x, axis: jnp.repeat(x, num_chains, axis=axis) if num_chains > 1 else x
    cache = KVCache(spread(cache.k, 1), spread(cache.v, 1), spread(cache.length_B, 0))
    hidden, cache = lm.apply(
      params,
      chains_BxRxT.reshape(batch * num_chains, columns),
      positions_BxT=cache.length_B[:, None] + jnp.arange(columns),
      mask=Cached(cache.length_B, jnp.zeros_like(cache.length_B), num_causal=columns),
      cache=cache,
    )
    logits = suppress(lm.logits(params, hidden), lm.config.mask_id)
    return logits.reshape(batch, num_chains, columns, -1), cache

  def keep(cache: KVCache, best_B, n_B):
    if num_chains > 1:
      at_B = jnp.arange(best_B.shape[0]) * num_chains + best_B
      cache = KVCache(cache.k[:, at_B], cache.v[:, at_B], cache.length_B[at_B])
    return kv_cache.commit(cache, n_B)

  return Chains(0, run, keep)


def as_tree(lm: LM, num_chains: int, columns: int) -> Chains:
  """Chains as branches of one sequence; what they store lies behind the text until one is kept."""
  if num_chains == 1:
    return as_batch(lm, 1, columns)
  scratch = num_chains * columns

  def run(params, cache: KVCache, chains_BxRxT):
    batch = chains_BxRxT.shape[0]
    position_BxT = cache.length_B[:, None] + jnp.arange(columns)
    hidden, cache = lm.apply(
      params,
      chains_BxRxT.reshape(batch, scratch),
      positions_BxT=jnp.tile(position_BxT, (1, num_chains)),
      mask=Branches(
        length_B=cache.length_B,
        origin_B=cache.length_B,
        end_B=cache.length_B + columns,
        branches=num_chains,
        block_size=1,  # blocks of one token: causal
      ),
      cache=cache,
      slots_BxT=cache.capacity - scratch + jnp.arange(scratch)[None],
    )
    logits = suppress(lm.logits(params, hidden), lm.config.mask_id)
    return logits.reshape(batch, num_chains, columns, -1), cache

  def keep(cache: KVCache, best_B, n_B):
    text = cache.capacity - scratch
    source_BxT = text + best_B[:, None] * columns + jnp.arange(columns)
    target_BxT = cache.length_B[:, None] + jnp.arange(columns)
    take = lambda x: jnp.take_along_axis(x, source_BxT[None, :, None, :, None], axis=3)
    nowhere = cache.capacity
    target_BxT = jnp.where(target_BxT < text, target_BxT, nowhere)
    cache = kv_cache.write(cache, take(cache.k), take(cache.v), target_BxT)
    return kv_cache.commit(cache, n_B)

  return Chains(scratch, run, keep)


MODES = {"batch": as_batch, "tree": as_tree}


def make_chains(lm: LM, mode: str, num_chains: int, columns: int) -> Chains:
  """Chains of `columns` tokens, `num_chains` a row.

  Raises:
    UsageError: an unknown mode.
  """
  if mode not in MODES:
    raise UsageError(f"draft_mode={mode!r}: choose one of {', '.join(MODES)}")
  return MODES[mode](lm, num_chains, columns)
