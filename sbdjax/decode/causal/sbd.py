"""Set Block Decoding (SBD, Algorithms 2 and 3): blocks of k tokens with an exact KV cache.

A block starts as k masks after the committed text and is refined: each forward predicts its
masked positions, a reveal rule says which predictions to keep, until no mask is left. The
committed text is causal, the open block bidirectional, so the finished block must be run once
more, causally, to enter the cache: the forward that does so is the one that first looks at the
next block (2k tokens), hence time(2k) + (l - 1) time(k) for a block of l forwards (eq. 16).

Names: x_<t is the committed text, x-hat_t..t+k-1 the `canvas`, t `block_start`, l the forwards
of a block. Where the paper is silent:

* A row is finished as soon as its first EOS or stop string, or its length limit, has no mask before
  it; masks after it are never looked at. The last block is not shortened, so a run with a smaller limit
  gives a prefix of the longer one.
* Noise for temperature > 0 is keyed by (row, forward, position).
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
from sbdjax.decode.causal.ar import prefill
from sbdjax.decode.method import Canvas, Method
from sbdjax.decode.rules import EBEntropy, Rule
from sbdjax.decode.tokens import Greedy, TokenSampler
from sbdjax.lm import LM
from sbdjax.masks import Cached
from sbdjax.nn.config import need_mask_token


@pytree.dataclass
class SBDState(pytree.Struct):
  """State of the Set Block Decoding sampler.

  Attributes:
    out: the tokens; masks beyond `length_B` up to the end of the canvas.
    cache: holds the prompt and the finished blocks but the last.
    block_start_B: int32, where the canvas of each row begins.
    pending_B: bool, the block before the canvas is finished but not in the cache yet.
    key_B: one key per row.
  """

  out: Generation
  cache: KVCache
  block_start_B: jax.Array
  pending_B: jax.Array
  key_B: jax.Array


@pytree.dataclass
class SBD(Method):
  """Set Block Decoding (Algorithms 2 and 3): blocks of k tokens with an exact KV cache.

  Attributes:
    block_size: k, tokens of a block.
    rule: which masked positions a forward reveals.
    token: token choice.

  Raises:
    UsageError: block_size < 1.
  """

  next_token: ClassVar[bool] = True

  block_size: int = pytree.static(default=16)
  rule: Rule = EBEntropy()
  token: TokenSampler = Greedy()

  def __post_init__(self) -> None:
    pytree.check(self.block_size >= 1, f"block_size={self.block_size} must be at least 1")

  def canvas(self, state: SBDState) -> Canvas:
    return Canvas(state.block_start_B, self.block_size)

  def cache_slots(self, width: int, limits: Limits) -> int:
    # One block of scratch: the last canvas may reach beyond the limit.
    return width + limits.max_tokens + self.block_size

  def sampler(self, lm: LM, limits: Limits) -> Sampler:
    k = self.block_size
    mask_id = mask_token(lm)

    def init(params, prompt_BxP, prompt_len_B, key, kept=None):
      batch, width = prompt_BxP.shape
      slots = self.cache_slots(width, limits)
      out = base.start(prompt_BxP, prompt_len_B, slots, mask_id, limits.stops)
      cache = prefill(lm, params, out.tokens_BxC[:, :width], out.prompt_len_B, slots, kept)
      out = out.replace(prefill_nfe_B=out.prefill_nfe_B + 1)
      pending_B = jnp.zeros((batch,), bool)
      return SBDState(out, cache, out.prompt_len_B, pending_B, base.row_keys(key, batch))

    def step(params: Any, state: SBDState) -> SBDState:
      out, done_B = state.out, state.out.done_B
      committing_B = state.pending_B & ~done_B
      logits, entries = jax.lax.cond(
        jnp.any(committing_B),
        lambda: predict(lm, params, state, k, num_causal=k),
        lambda: predict(lm, params, state, k, num_causal=0),
      )
      index_Bxk = state.block_start_B[:, None] + jnp.arange(k)
      slots_Bxk = jnp.where(committing_B[:, None], index_Bxk - k, state.cache.capacity)
      cache = kv_cache.write(state.cache, entries.k, entries.v, slots_Bxk)
      cache = kv_cache.commit(cache, jnp.where(committing_B, k, 0))

      canvas = jnp.take_along_axis(out.tokens_BxC, index_Bxk, axis=1)
      keys_B = jax.vmap(jax.random.fold_in)(state.key_B, out.nfe_B)
      revealed = self.rule(logits, canvas == mask_id)
      canvas = jnp.where(revealed, jax.vmap(self.token)(keys_B, logits), canvas)

      # The row's text is final up to its first mask.
      final_Bxk = jnp.cumsum(canvas == mask_id, axis=1) == 0
      frontier_B = state.block_start_B + jnp.sum(final_Bxk, axis=1)
      complete_B = jnp.all(final_Bxk, axis=1)
      new_out = base.reveal(
        out, index_Bxk, canvas, revealed, width=jnp.where(state.pending_B, 2 * k, k)
      )
      new_out = base.finish(new_out, limits, index_Bxk, canvas, frontier_B)
      old = (out, state.block_start_B, state.pending_B)
      new = (new_out, state.block_start_B + jnp.where(complete_B, k, 0), complete_B)
      out, block_start_B, pending_B = base.keep_done(done_B, old, new)
      return state.replace(out=out, cache=cache, block_start_B=block_start_B, pending_B=pending_B)

    return Sampler(init, step, lambda state: state.out.done_B)


def mask_token(lm: LM) -> int:
  """The mask token of `lm`. Raises UsageError where it has none."""
  return need_mask_token(lm.config, "fine-tune it with the SBD loss first")


def predict(
  lm: LM, params: Any, state: SBDState, k: int, num_causal: int
) -> tuple[jax.Array, kv_cache.Entries]:
  """Logits float32 [B, k, V] of the canvas (Algorithm 3), and what the block before it stores.

  Args:
    num_causal: k: rows with a pending block run it too, causally, to be stored; 0: nobody does,
      and the entries are zeros.
  """
  offset_T = jnp.arange(-num_causal, k)
  position_BxT = state.block_start_B[:, None] + offset_T
  # Rows without a pending block bring the canvas alone; their other columns see nothing that
  # counts, and are not stored.
  valid_BxT = (offset_T >= 0) | state.pending_B[:, None]
  tokens_BxT = jnp.take_along_axis(
    state.out.tokens_BxC, jnp.where(valid_BxT, position_BxT, 0), axis=1
  )
  hidden, entries = lm.apply(
    params,
    tokens_BxT,
    positions_BxT=jnp.maximum(position_BxT, 0),
    mask=Cached(
      length_B=state.cache.length_B,
      start_B=jnp.where(state.pending_B, 0, num_causal),
      num_causal=num_causal,
    ),
    cache=state.cache,
    write=False,
  )
  # k entries in either case, as both branches of a step must return: zeros where nobody stores.
  return lm.logits(params, hidden[:, num_causal:]), entries.first(num_causal).first(k)
