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
from sbdjax.decode.method import Method
from sbdjax.decode.tokens import Greedy, TokenSampler
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

  one_token: ClassVar[bool] = True

  token: TokenSampler = Greedy()

  def sampler(self, lm: LM, limits: Limits) -> Sampler:
    def init(params, prompt_BxP, prompt_len_B, key):
      batch, width = prompt_BxP.shape
      capacity = width + limits.max_tokens
      out = base.start(prompt_BxP, prompt_len_B, capacity, fill=0)
      cache = prefill(lm, params, out.tokens_BxC[:, :width], out.prompt_len_B - 1, capacity)
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
  lm: LM, params: Any, prompt_BxP: jax.Array, n_committed_B: jax.Array, capacity: int
) -> KVCache:
  """A cache that holds the first `n_committed_B` tokens of each right-padded prompt."""
  batch, width = prompt_BxP.shape
  cache = lm.init_cache(batch, capacity)
  zero_B = jnp.zeros((batch,), jnp.int32)
  _, cache = lm.apply(
    params,
    prompt_BxP,
    positions_BxT=jnp.broadcast_to(jnp.arange(width), (batch, width)),
    mask=Cached(length_B=zero_B, start_B=zero_B, num_causal=width),
    cache=cache,
  )
  return kv_cache.commit(cache, n_committed_B)
