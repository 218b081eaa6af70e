"""Autoregressive decoding with an exact KV cache: the baseline, one token a forward.

The prefill stores the prompt; its last token is run again by the first step, so that n generated
tokens are n forwards and tokens per forward is exactly 1, the unit every other sampler is
measured against.
"""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp

from sbdjax import cache as kv_cache
from sbdjax.cache import KVCache
from sbdjax.decode import base
from sbdjax.decode.base import Generation, Limits, Sampler
from sbdjax.decode.sampling import Choose
from sbdjax.lm import LM, suppress
from sbdjax.masks import Cached


@flax.struct.dataclass
class ARState:
  """State of the autoregressive sampler.

  Attributes:
    out: tokens so far.
    cache: committed: every token but the last.
    key_B: one key a row; noise is keyed by (row, position).
  """

  out: Generation
  cache: KVCache
  key_B: jax.Array


def prefill(lm: LM, params, prompt_BxP, n_committed_B, capacity: int) -> KVCache:
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


def make_sampler(lm: LM, limits: Limits, choose: Choose) -> Sampler:
  """Next-token decoding (SBD eq. 1): draws x_t from p(x_t | x_<t) by `choose`."""

  def init(params, prompt_BxP, prompt_len_B, key):
    batch, width = prompt_BxP.shape
    capacity = width + limits.max_tokens
    out = base.start(prompt_BxP, prompt_len_B, capacity, fill=0)
    cache = prefill(lm, params, out.tokens_BxC[:, :width], out.prompt_len_B - 1, capacity)
    out = out.replace(prefill_nfe_B=out.prefill_nfe_B + 1)
    return ARState(out, cache, base.row_keys(key, batch))

  def step(params, state: ARState) -> ARState:
    out, rows = state.out, jnp.arange(state.out.length_B.shape[0])
    position_Bx1 = out.length_B[:, None] - 1
    hidden, cache = lm.apply(
      params,
      jnp.take_along_axis(out.tokens_BxC, position_Bx1, axis=1),
      positions_BxT=position_Bx1,
      mask=Cached(length_B=state.cache.length_B, start_B=jnp.zeros_like(rows), num_causal=1),
      cache=state.cache,
    )
    logits_BxV = suppress(lm.logits(params, hidden[:, 0]), lm.config.mask_id)
    keys_B = jax.vmap(jax.random.fold_in)(state.key_B, out.length_B)
    token_B = jax.vmap(choose)(keys_B, logits_BxV)
    eos_B = limits.is_eos(token_B)
    length_B = out.length_B + 1
    full_B = length_B - out.prompt_len_B >= limits.of_rows(rows.shape[0])
    new = out.replace(
      tokens_BxC=out.tokens_BxC.at[rows, out.length_B].set(token_B, mode="drop"),
      reveal_step_BxC=out.reveal_step_BxC.at[rows, out.length_B].set(out.nfe_B, mode="drop"),
      length_B=length_B,
      nfe_B=out.nfe_B + 1,
      query_tokens_B=out.query_tokens_B + 1,
      done_B=eos_B | full_B,
      eos_B=eos_B,
    )
    cache = kv_cache.commit(cache, (~out.done_B).astype(jnp.int32))
    return state.replace(out=base.keep_done(out.done_B, out, new), cache=cache)

  return Sampler(init, step, lambda state: state.out.done_B)
