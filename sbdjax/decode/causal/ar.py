"""Autoregressive decoding with an exact KV cache: the baseline, one token per forward.

The prefill stores the prompt; its last token is run again by the first step, so that n generated
tokens are n forwards and tokens per forward is exactly 1, the unit every other sampler is
measured against.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from sbdjax import cache as kv_cache
from sbdjax import pytree
from sbdjax.cache import KVCache
from sbdjax.decode import base
from sbdjax.decode.base import Generation, Limits, Sampler
from sbdjax.decode.kept import Kept
from sbdjax.decode.method import Method
from sbdjax.decode.tokens import Greedy, TokenSampler
from sbdjax.errors import UsageError
from sbdjax.lm import LM
from sbdjax.masks import Cached


@pytree.dataclass
class ARState(pytree.Struct):
  """State of the autoregressive sampler.

  Attributes:
    out: tokens so far.
    cache: committed: every token but the last.
    key_B: one key per row; noise is keyed by (row, position).
  """

  out: Generation
  cache: KVCache
  key_B: jax.Array


@pytree.dataclass
class AR(Method):
  """Autoregressive decoding with an exact KV cache: one token per forward, the baseline.

  Draws x_t from p(x_t | x_<t) (SBD eq. 1).

  Attributes:
    token: token choice.
  """

  next_token: ClassVar[bool] = True
  one_token: ClassVar[bool] = True

  token: TokenSampler = Greedy()

  def cache_slots(self, width: int, limits: Limits) -> int:
    return width + limits.max_tokens

  def sampler(self, lm: LM, limits: Limits) -> Sampler:
    def init(params, prompt_BxP, prompt_len_B, key, kept=None):
      batch, width = prompt_BxP.shape
      slots = self.cache_slots(width, limits)
      out = base.start(prompt_BxP, prompt_len_B, width + limits.max_tokens, 0, limits.stops)
      cache = prefill(lm, params, out.tokens_BxC[:, :width], out.prompt_len_B - 1, slots, kept)
      out = out.replace(prefill_nfe_B=out.prefill_nfe_B + 1)
      return ARState(out, cache, base.row_keys(key, batch))

    def step(params: Any, state: ARState) -> ARState:
      out, cache = state.out, state.cache
      last_Bx1 = out.length_B[:, None] - 1
      hidden, cache = lm.apply(
        params,
        jnp.take_along_axis(out.tokens_BxC, last_Bx1, axis=1),
        positions_BxT=last_Bx1,
        mask=Cached(cache.length_B, start_B=jnp.zeros_like(cache.length_B), num_causal=1),
        cache=cache,
      )
      keys_B = base.position_keys(state.key_B, out.length_B[:, None])[:, 0]
      token_B = jax.vmap(self.token)(keys_B, lm.logits(params, hidden[:, 0]))
      new = base.append(out, token_B[:, None], jnp.ones_like(token_B), limits, width=1)
      cache = kv_cache.commit(cache, (~out.done_B).astype(jnp.int32))
      return state.replace(out=base.keep_done(out.done_B, out, new), cache=cache)

    return Sampler(init, step, lambda state: state.out.done_B)


def prefill(
  lm: LM,
  params: Any,
  prompt_BxP: jax.Array,
  n_committed_B: jax.Array,
  capacity: int,
  kept: Kept | None = None,
) -> KVCache:
  """A cache that holds the first `n_committed_B` tokens of each right-padded prompt.

  Args:
    capacity: slots a row.
    kept: the beginning of every prompt, which is not run again; None: all of them are run.

  Raises:
    UsageError: the cache of `kept` has fewer slots.
  """
  batch, width = prompt_BxP.shape
  kept = kept or Kept(lm.init_cache(batch, capacity), columns=width)
  length_B = kept.cache.length_B
  if kept.cache.capacity < capacity:
    raise UsageError(
      f"a kept cache of {kept.cache.capacity} slots where {capacity} are needed: see cache.resized"
    )
  position_BxT = length_B[:, None] + jnp.arange(kept.columns)
  _, cache = lm.apply(
    params,
    jnp.take_along_axis(prompt_BxP, jnp.minimum(position_BxT, width - 1), axis=1),
    positions_BxT=position_BxT,
    mask=Cached(length_B=length_B, start_B=jnp.zeros_like(length_B), num_causal=kept.columns),
    cache=kept.cache,
  )
  return kv_cache.commit(cache, n_committed_B - length_B)
