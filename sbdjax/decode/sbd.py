"""Set Block Decoding (SBD, Algorithms 2 and 3): blocks of k tokens with an exact KV cache.

A block starts as k masks after the committed text and is refined: each forward predicts its
masked positions, a reveal rule says which predictions to keep, until no mask is left. The
committed text is causal, the open block bidirectional, so the finished block must be run once
more, causally, to enter the cache: the forward that does so is the one that first looks at the
next block (2k tokens), hence time(2k) + (l - 1) time(k) for a block of l forwards (eq. 16).

Names: x_<t is the committed text, x-hat_t..t+k-1 the `canvas`, t `block_start`, l the forwards
of a block. Where the paper is silent:

* A row is finished as soon as its first EOS, or its length limit, has no mask before it; masks
  after it are never looked at. The last block is not shortened, so a run with a smaller limit
  gives a prefix of the longer one.
* Noise for temperature > 0 is keyed by (row, forward, position).
"""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp

from sbdjax import cache as kv_cache
from sbdjax.cache import KVCache
from sbdjax.decode import base
from sbdjax.decode.ar import prefill
from sbdjax.decode.base import Generation, Limits, Sampler
from sbdjax.decode.sampling import Choose
from sbdjax.decode.select import Rule
from sbdjax.errors import UsageError
from sbdjax.lm import LM, suppress
from sbdjax.masks import Cached


@flax.struct.dataclass
class SBDState:
  """State of the Set Block Decoding sampler.

  Attributes:
    out: the tokens; masks beyond `length_B` up to the end of the canvas.
    cache: holds the prompt and the finished blocks but the last.
    block_start_B: int32, where the canvas of each row begins.
    pending_B: bool, the block before the canvas is finished but not in the cache yet.
    key_B: one key a row.
  """

  out: Generation
  cache: KVCache
  block_start_B: jax.Array
  pending_B: jax.Array
  key_B: jax.Array


def make_sampler(lm: LM, limits: Limits, choose: Choose, rule: Rule, block_size: int) -> Sampler:
  """Algorithm 2 with blocks of `block_size`, tokens by `choose`, reveals by `rule`.

  Raises:
    UsageError: block_size < 1, or a model without a mask token.
  """
  k, mask_id = block_size, lm.config.mask_id
  if k < 1:
    raise UsageError(f"block_size={k} must be at least 1")
  if mask_id is None:
    raise UsageError("this checkpoint has no mask token: fine-tune it with the SBD loss first")

  def init(params, prompt_BxP, prompt_len_B, key):
    batch, width = prompt_BxP.shape
    # One block of scratch: the last canvas may reach beyond the limit.
    capacity = width + limits.max_tokens + k
    out = base.start(prompt_BxP, prompt_len_B, capacity, fill=mask_id)
    cache = prefill(lm, params, out.tokens_BxC[:, :width], out.prompt_len_B, capacity)
    out = out.replace(prefill_nfe_B=out.prefill_nfe_B + 1)
    pending_B = jnp.zeros((batch,), bool)
    return SBDState(out, cache, out.prompt_len_B, pending_B, base.row_keys(key, batch))

  def forward(params, state: SBDState, commits: bool):
    """Logits of the canvas. With `commits`, rows with a pending block also commit it."""
    num_causal = k if commits else 0
    offset_T = jnp.arange(-num_causal, k)
    position_BxT = state.block_start_B[:, None] + offset_T
    # Rows without a pending block bring the canvas alone; their other columns see and store
    # nothing that counts.
    valid_BxT = (offset_T >= 0) | state.pending_B[:, None]
    tokens_BxT = jnp.take_along_axis(
      state.out.tokens_BxC, jnp.where(valid_BxT, position_BxT, 0), axis=1
    )
    stored_BxT = valid_BxT & (offset_T < 0)
    hidden, cache = lm.apply(
      params,
      tokens_BxT,
      positions_BxT=jnp.maximum(position_BxT, 0),
      mask=Cached(
        length_B=state.cache.length_B,
        start_B=jnp.where(state.pending_B, 0, num_causal),
        num_causal=num_causal,
      ),
      cache=state.cache,
      slots_BxT=jnp.where(stored_BxT, position_BxT, state.cache.capacity),
    )
    return lm.logits(params, hidden[:, num_causal:]), cache

  def step(params, state: SBDState) -> SBDState:
    out, done_B = state.out, state.out.done_B
    rows_Bx1 = jnp.arange(done_B.shape[0])[:, None]
    logits, cache = jax.lax.cond(
      jnp.any(state.pending_B & ~done_B),
      lambda s: forward(params, s, commits=True),
      lambda s: forward(params, s, commits=False),
      state,
    )
    logits = suppress(logits, mask_id)
    cache = kv_cache.commit(cache, jnp.where(state.pending_B & ~done_B, k, 0))

    index_Bxk = state.block_start_B[:, None] + jnp.arange(k)
    canvas = jnp.take_along_axis(out.tokens_BxC, index_Bxk, axis=1)
    masked = canvas == mask_id
    keys_B = jax.vmap(jax.random.fold_in)(state.key_B, out.nfe_B)
    proposal = jax.vmap(choose)(keys_B, logits)
    reveal = rule(logits, masked)
    canvas = jnp.where(reveal, proposal, canvas)

    # The row's text is final up to its first mask.
    open_Bxk = jnp.cumsum(canvas == mask_id, axis=1) > 0
    frontier_B = state.block_start_B + jnp.sum(~open_Bxk, axis=1)
    limit_B = out.prompt_len_B + limits.of_rows(done_B.shape[0])
    within = ~open_Bxk & (index_Bxk < limit_B[:, None])
    eos_Bxk = limits.is_eos(canvas) & within
    eos_B = jnp.any(eos_Bxk, axis=1)
    first_eos_B = state.block_start_B + jnp.argmax(eos_Bxk, axis=1)
    complete_B = ~jnp.any(open_Bxk, axis=1)
    new_out = out.replace(
      tokens_BxC=out.tokens_BxC.at[rows_Bx1, index_Bxk].set(canvas),
      reveal_step_BxC=out.reveal_step_BxC.at[rows_Bx1, index_Bxk].set(
        jnp.where(
          reveal,
          out.nfe_B[:, None],
          jnp.take_along_axis(out.reveal_step_BxC, index_Bxk, axis=1),
        )
      ),
      length_B=jnp.where(eos_B, first_eos_B + 1, jnp.minimum(frontier_B, limit_B)),
      nfe_B=out.nfe_B + 1,
      query_tokens_B=out.query_tokens_B + jnp.where(state.pending_B, 2 * k, k),
      done_B=eos_B | (frontier_B >= limit_B),
      eos_B=eos_B,
    )
    old = (out, state.block_start_B, state.pending_B)
    new = (new_out, state.block_start_B + jnp.where(complete_B, k, 0), complete_B)
    out, block_start_B, pending_B = base.keep_done(done_B, old, new)
    return state.replace(out=out, cache=cache, block_start_B=block_start_B, pending_B=pending_B)

  return Sampler(init, step, lambda state: state.out.done_B)
