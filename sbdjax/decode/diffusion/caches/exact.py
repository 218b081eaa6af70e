"""An exact cache: finished blocks of a block-causal model never change, so they are run once.

A forward runs the window alone; a finished block enters the cache with one forward more, or, by
`keep`, with the keys it had in the draft that was accepted. Keys of drafts lie in scratch: those of
the first at their own positions beyond the committed text, and where a tree of drafts may be asked
for any of them, after the canvas.

Where logits are shifted, the position before the window is run along as a leading column; its own
keys are in the cache. (Dream's code takes a block's first token from the forward that froze the
cache instead.)
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from sbdjax import cache as kv_cache
from sbdjax import pytree
from sbdjax.cache import KVCache
from sbdjax.decode.diffusion.blocks import BlockState, BlockWindow
from sbdjax.decode.diffusion.forward import Network, with_drafts


@pytree.dataclass
class ExactNetwork(Network):
  """Forwards over the window, after a cache of the finished blocks."""

  stores: ClassVar[bool] = True

  @property
  def scratch(self) -> bool:
    """Whether drafts' keys lie after the canvas at first."""
    return self.kept > 1 and self.draft_mode == "tree"

  def prefill(self, params: Any, state: BlockState, prompt_width: int) -> BlockState:
    """Stores the whole blocks of the prompts."""
    k, out = self.grid.block_size, state.out
    batch, capacity = out.tokens_BxC.shape
    scratch_slots = self.kept * self.window_size if self.scratch else 0
    cache = self.lm.init_cache(self.passes * batch, capacity + scratch_slots)
    width = prompt_width // k * k
    if not width:
      return state.replace(cache=cache)
    n_B = out.prompt_len_B // k * k
    slots_BxT = jnp.where(jnp.arange(width) < n_B[:, None], jnp.arange(width), cache.capacity)
    _, cache = self.apply(
      params,
      cache,
      state.replace(end_B=n_B),
      out.tokens_BxC[:, None, :width],
      jnp.zeros_like(n_B),
      slots_BxT[:, None],
    )
    return state.replace(
      cache=kv_cache.commit(cache, self.twice(n_B)),
      out=out.replace(prefill_nfe_B=out.prefill_nfe_B + (n_B > 0)),
    )

  def run(
    self,
    params: Any,
    state: BlockState,
    window: BlockWindow,
    drafts_BxDxW: jax.Array,
    store_B: jax.Array,
    use_B: jax.Array,
  ) -> tuple[jax.Array, Any]:
    del use_B
    lead, branches = int(self.shifted), drafts_BxDxW.shape[1]
    origin_B = state.start_B - lead
    position_BxT = origin_B[:, None] + jnp.arange(lead + self.window_size)
    hidden, cache = self.apply(
      params,
      state.cache,
      state,
      with_drafts(state, drafts_BxDxW, position_BxT),
      origin_B,
      self._slots(state, position_BxT, branches),
      lead,
    )
    if self.kept == 1:  # else `keep` says what is committed
      if self.rows_per_draft(branches):
        cache = self.keep(cache, state, jnp.zeros_like(state.start_B), state.start_B)
      cache = kv_cache.commit(cache, self.twice(jnp.where(store_B, self.grid.block_size, 0)))
    return self.read(params, hidden, window, origin_B), cache

  def _slots(self, state: BlockState, position_BxT: jax.Array, branches: int) -> jax.Array:
    """Where the keys of each branch go, [B, D, T]; leading columns are in the cache already."""
    nowhere = state.cache.capacity
    offset_BxT = position_BxT - state.start_B[:, None]
    stored_BxT = offset_BxT >= 0
    branch_Dx1 = jnp.arange(branches)[:, None]
    if self.scratch:
      first_Dx1 = nowhere + self.window_size * (branch_Dx1 - self.kept)
      return jnp.where(stored_BxT[:, None], first_Dx1 + offset_BxT[:, None], nowhere)
    # At the positions nothing is committed yet, so what is put there does no harm.
    at_BxT = jnp.where(stored_BxT, position_BxT, nowhere)
    return jnp.where(branch_Dx1 < self.kept, at_BxT[:, None], nowhere)

  def keep(self, cache: Any, state: BlockState, best_B: jax.Array, length_B: jax.Array) -> Any:
    length_B = jnp.where(state.out.done_B, state.cache.length_B[: best_B.shape[0]], length_B)
    start_B, best_B, length_B = self.twice((state.start_B, best_B, length_B))
    rows = best_B.shape[0]
    branches = cache.k.shape[1] // rows  # of drafts that were run as a batch
    if branches > 1:
      at_B = jnp.arange(rows) * branches + best_B
      cache = KVCache(cache.k[:, at_B], cache.v[:, at_B], cache.length_B)
    elif self.scratch:
      offset_W = jnp.arange(self.window_size)
      first_B = cache.capacity + self.window_size * (best_B - self.kept)
      source_BxW = first_B[:, None] + offset_W
      take = lambda x: jnp.take_along_axis(x, source_BxW[None, :, None, :, None], axis=3)
      cache = kv_cache.write(cache, take(cache.k), take(cache.v), start_B[:, None] + offset_W)
    return cache.replace(length_B=length_B)

  def width(self, state: BlockState) -> jax.Array:
    lead = int(self.shifted)
    columns = lead + self.window_size
    return self.passes * jnp.minimum(columns, state.end_B - (state.start_B - lead))
