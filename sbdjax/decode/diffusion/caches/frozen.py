"""A frozen cache of a bidirectional model: what stands around a block is run when it begins.

One forward over the whole canvas opens a block and fills the cache (Fast-dLLM). The frozen keys of
later positions, and of the block's own surroundings, are then those of that moment: an
approximation.

Where logits are shifted, the position before the window is run along as a leading column; its own
keys are in the cache.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from sbdjax import pytree
from sbdjax.decode.diffusion.blocks import BlockState, BlockWindow
from sbdjax.decode.diffusion.forward import Network, with_drafts


@pytree.dataclass
class FrozenNetwork(Network):
  """Forwards over the block, or over all from it on, beside a frozen cache of the rest.

  Attributes:
    suffix: what stands after the block is frozen too.
  """

  suffix: bool = pytree.static(default=False)

  def prefill(self, params: Any, state: BlockState, prompt_width: int) -> BlockState:
    """An empty cache."""
    del params, prompt_width
    batch, capacity = state.out.tokens_BxC.shape
    return state.replace(cache=self.lm.init_cache(self.passes * batch, capacity))

  def run(
    self,
    params: Any,
    state: BlockState,
    window: BlockWindow,
    drafts_BxDxW: jax.Array,
    store_B: jax.Array,
    use_B: jax.Array,
  ) -> tuple[jax.Array, Any]:
    del store_B
    cache, freeze_B = state.cache, use_B & ~state.opened_B
    shape = (*drafts_BxDxW.shape, self.lm.config.vocab_size)
    nothing = jnp.zeros(shape, jnp.float32)

    def frozen_first(cache):
      logits, cache = self._freeze(params, state, window, cache, freeze_B)
      return jnp.broadcast_to(logits, shape), cache

    first, cache = jax.lax.cond(
      jnp.any(freeze_B), frozen_first, lambda cache: (nothing, cache), cache
    )
    later = jax.lax.cond(
      jnp.any(use_B & state.opened_B),
      lambda: self._forward_window(params, state, window, cache, drafts_BxDxW),
      lambda: nothing,
    )
    return jnp.where(freeze_B[:, None, None, None], first, later), cache

  def _freeze(
    self,
    params: Any,
    state: BlockState,
    window: BlockWindow,
    cache: Any,
    freeze_B: jax.Array,
  ) -> tuple[jax.Array, Any]:
    """Freezes the canvas of `freeze_B` rows; their logits [B, 1, W, V] come from this forward."""
    k, start_B = self.grid.block_size, state.start_B
    tokens_BxC = state.out.tokens_BxC
    capacity = tokens_BxC.shape[1]
    index_C = jnp.arange(capacity)
    # Prefix and suffix lie side by side in the cache, so a query sees one run of slots.
    after_BxC = (index_C >= start_B[:, None] + k) & (index_C < state.end_B[:, None])
    after_BxC &= self.suffix
    slot_BxC = jnp.where(after_BxC, index_C - k, capacity)
    slot_BxC = jnp.where(index_C < start_B[:, None], index_C, slot_BxC)
    slot_BxC = jnp.where(freeze_B[:, None], slot_BxC, capacity)
    zero_B = jnp.zeros_like(start_B)
    empty = cache.replace(length_B=jnp.zeros_like(cache.length_B))
    hidden, new = self.apply(params, empty, state, tokens_BxC[:, None], zero_B, slot_BxC[:, None])
    length_B = start_B + jnp.sum(after_BxC, axis=1)
    length_B = jnp.where(self.twice(freeze_B), self.twice(length_B), cache.length_B)
    return self.read(params, hidden, window, zero_B), new.replace(length_B=length_B)

  def _forward_window(
    self,
    params: Any,
    state: BlockState,
    window: BlockWindow,
    cache: Any,
    drafts_BxDxW: jax.Array,
  ) -> jax.Array:
    """Logits [B, D, W, V] of the drafts; nothing is stored."""
    lead = int(self.shifted)
    origin_B = state.start_B - lead
    position_BxT = origin_B[:, None] + jnp.arange(self._columns(state))
    tokens_BxDxT = with_drafts(state, drafts_BxDxW, position_BxT)
    nowhere_BxDxT = jnp.full_like(tokens_BxDxT, cache.capacity)
    hidden, _ = self.apply(params, cache, state, tokens_BxDxT, origin_B, nowhere_BxDxT, lead)
    return self.read(params, hidden, window, origin_B)

  def _columns(self, state: BlockState) -> int:
    """Columns of one branch: the leading one, and the block or all that follows."""
    longest = min(state.out.tokens_BxC.shape[1], self.grid.limits.max_tokens)
    return int(self.shifted) + (self.window_size if self.suffix else longest)

  def width(self, state: BlockState) -> jax.Array:
    left_B = state.end_B - (state.start_B - int(self.shifted))
    width_B = jnp.minimum(self._columns(state), left_B)
    return self.passes * jnp.where(state.opened_B, width_B, state.end_B)
