"""One forward of a diffusion model over the window of a canvas, for every kind of cache.

    none    the whole canvas is run each time
    block   exact: finished blocks of a block-causal model are cached; only the window is run
    prefix  everything before the block is frozen when the block begins (one forward over the whole
            canvas); block and suffix are run each time (Fast-dLLM)
    dual    what lies behind the block is frozen too; only the block is run (Fast-dLLM)

`block` gives the tokens of `none`; `prefix` and `dual` are approximations, and "lossless" beside
them means equal to static decoding with the same cache.

A forward carries d drafts of the window: as a batch of d rows each with its copy of the cache, or
as one sequence of d branches under a mask (`masks.Branches`), which share it.

A model with shifted logits (Dream) predicts position i from its output at i - 1, so the position
before the window is run along as a leading column; its own keys are in the cache. (Dream's code
takes a block's first token from the forward that froze the cache instead.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from sbdjax import cache as kv_cache
from sbdjax.cache import KVCache
from sbdjax.decode.canvas import Canvas, CanvasState, Window
from sbdjax.errors import UsageError
from sbdjax.lm import LM
from sbdjax.masks import Branches


class CacheKind(NamedTuple):
  """What a forward need not run again.

  Attributes:
    whole: nothing, every forward runs the whole canvas.
    exact: finished blocks enter the cache and stay valid.
    frozen: a forward over the whole canvas fills the cache when a block begins.
    suffix: what lies behind the block is frozen too.
  """

  whole: bool = False
  exact: bool = False
  frozen: bool = False
  suffix: bool = False


CACHES = {
  "none": CacheKind(whole=True),
  "block": CacheKind(exact=True),
  "prefix": CacheKind(frozen=True),
  "dual": CacheKind(frozen=True, suffix=True),
}
DRAFT_MODES = ("batch", "tree")


@dataclasses.dataclass(frozen=True)
class Forwarding:
  """How forwards are made.

  Attributes:
    cache: a key of CACHES.
    shifted: position i is predicted from the output at i - 1.
    draft_mode: "batch" or "tree".
    cfg_scale: s of classifier-free guidance, logits = un + (s + 1) (cond - un), where `un` comes
      from the same text with the prompt masked (LLaDA); 0: no second pass.

  Raises:
    UsageError: an unknown name, or a negative scale.
  """

  cache: str = "none"
  shifted: bool = False
  draft_mode: str = "tree"
  cfg_scale: float = 0.0

  def __post_init__(self):
    for name, known in (("cache", CACHES), ("draft_mode", DRAFT_MODES)):
      if getattr(self, name) not in known:
        raise UsageError(f"{name}={getattr(self, name)!r}: choose one of {', '.join(known)}")
    if not self.cfg_scale >= 0:
      raise UsageError(f"cfg_scale={self.cfg_scale} must not be negative")


class Network(NamedTuple):
  """The forwards of a sampler.

  Attributes:
    prefill: (params, state, prompt_width) -> state with a cache that holds the whole blocks of the prompt.
    run: (params, state, window, drafts_BxDxW, store_B, use_B) -> (logits_BxDxWxV, cache). Rows of
      `store_B` have finished their block and put it into an exact cache; rows whose block has not
      been opened freeze the cache first where it is a frozen one. Only `use_B` rows matter.
    keep: (cache, state, best_B, length_B) -> cache that holds the text up to `length_B` as draft
      `best_B` of the forward that gave `cache` has it.
    width: (state) -> int32 [B], tokens one branch runs for each row; padding is not counted.
    stores: a finished block needs one more forward to enter the cache.
  """

  prefill: Callable[..., CanvasState]
  run: Callable[..., tuple[jax.Array, KVCache | None]]
  keep: Callable[..., KVCache | None]
  width: Callable[[CanvasState], jax.Array]
  stores: bool


def make_network(
  lm: LM, canvas: Canvas, settings: Forwarding, num_blocks: int, kept: int = 1
) -> Network:
  """Forwards over windows of `num_blocks` blocks.

  Args:
    kept: how many branches' keys `keep` may ask for; the first one's are always there.

  Raises:
    UsageError: a cache that does not fit the attention, or a look-ahead over a frozen cache.
  """
  kind, k = CACHES[settings.cache], canvas.block_size
  if kind.exact != canvas.block_causal and not kind.whole:
    raise UsageError(
      f"cache={settings.cache} does not fit attention={canvas.attention}: use none or "
      f"{'block' if canvas.block_causal else 'prefix or dual'}"
    )
  if kind.frozen and num_blocks > 1:
    raise UsageError(
      f"eager acceptance looks at later blocks, which cache={settings.cache} has frozen: use "
      "cache=none (or eager=false)"
    )
  lead = int(settings.shifted and not kind.whole)
  guided = settings.cfg_scale > 0

  as_rows = lambda branches: settings.draft_mode == "batch" and branches > 1
  aside = kept > 1 and settings.draft_mode == "tree"  # drafts' keys lie behind the text at first

  def num_columns(capacity: int) -> int:
    """Columns of one branch."""
    if kind.whole:
      return capacity
    if kind.frozen and not kind.suffix:
      return lead + min(capacity, canvas.limits.max_tokens)
    return lead + num_blocks * k

  def origin(start_B):
    return jnp.zeros_like(start_B) if kind.whole else start_B - lead

  def width(state: CanvasState):
    columns = num_columns(state.out.tokens_BxC.shape[1])
    width_B = jnp.minimum(columns, state.end_B - origin(state.start_B))
    if kind.frozen:
      width_B = jnp.where(state.opened_B, width_B, state.end_B)
    return width_B * (2 if guided else 1)

  def twice(tree):
    """Rows for the unconditional pass behind those of the conditional one."""
    return jax.tree.map(lambda x: jnp.concatenate([x, x]), tree) if guided else tree

  def apply(params, cache, state, tokens_BxDxT, origin_B, lead, slots_BxDxT):
    """Hidden states [B or 2B, D, T, .] of T positions from `origin_B` on; keys go to the slots.

    Drafts run as a batch leave a cache of as many rows.
    """
    batch, branches, columns = tokens_BxDxT.shape
    position_BxT = origin_B[:, None] + jnp.arange(columns)
    if guided:
      prompt = (position_BxT < state.out.prompt_len_B[:, None])[:, None]
      hidden_prompt = jnp.where(prompt, canvas.mask_id, tokens_BxDxT)
      tokens_BxDxT = jnp.concatenate([tokens_BxDxT, hidden_prompt])
    bounds = twice((origin_B, state.end_B))
    length_B = jnp.zeros_like(bounds[0]) if cache is None else cache.length_B
    position_BxDxT = twice(jnp.broadcast_to(position_BxT[:, None], (batch, branches, columns)))
    rows, batched = tokens_BxDxT.shape[0], as_rows(branches)
    shape = (rows * branches, columns) if batched else (rows, branches * columns)
    each = lambda x, axis=0: jnp.repeat(x, branches, axis=axis) if batched else x
    if cache is not None:
      cache = KVCache(each(cache.k, 1), each(cache.v, 1), each(cache.length_B))
    hidden, cache = lm.apply(
      params,
      tokens_BxDxT.reshape(shape),
      positions_BxT=jnp.maximum(position_BxDxT, 0).reshape(shape),
      mask=Branches(
        each(length_B),
        *map(each, bounds),
        branches=1 if batched else branches,
        lead=lead,
        block_size=k if canvas.block_causal else None,
      ),
      cache=cache,
      slots_BxT=None if cache is None else twice(slots_BxDxT).reshape(shape),
    )
    return hidden.reshape(rows, branches, columns, -1), cache

  def read(params, hidden_BxDxTxE, window: Window, origin_B):
    """Logits [B, D, W, V] of the window's positions."""
    source_BxW = jnp.maximum(window.position_BxW - int(settings.shifted), 0) - origin_B[:, None]
    column_BxW = twice(jnp.clip(source_BxW, 0, hidden_BxDxTxE.shape[2] - 1))
    logits = lm.logits(
      params,
      jnp.take_along_axis(hidden_BxDxTxE, column_BxW[:, None, :, None], axis=2, mode="clip"),
    )
    if not guided:
      return logits
    conditional, unconditional = jnp.split(logits, 2)
    return unconditional + (settings.cfg_scale + 1) * (conditional - unconditional)

  def prefill(params, state: CanvasState, prompt_width: int) -> CanvasState:
    if kind.whole:
      return state
    out = state.out
    batch, capacity = out.tokens_BxC.shape
    slots_aside = kept * num_blocks * k if aside else 0
    cache = lm.init_cache(2 * batch if guided else batch, capacity + slots_aside)
    width = prompt_width // k * k
    if kind.frozen or not width:
      return state.replace(cache=cache)
    n_B = out.prompt_len_B // k * k
    slots_BxT = jnp.where(jnp.arange(width) < n_B[:, None], jnp.arange(width), cache.capacity)
    whole = state.replace(end_B=n_B)
    zero_B = jnp.zeros_like(n_B)
    tokens = out.tokens_BxC[:, None, :width]
    _, cache = apply(params, cache, whole, tokens, zero_B, 0, slots_BxT[:, None])
    nfe_B = out.prefill_nfe_B + (n_B > 0)
    cache = kv_cache.commit(cache, twice(n_B))
    return state.replace(cache=cache, out=out.replace(prefill_nfe_B=nfe_B))

  def refresh(params, state, window, cache, freeze_B):
    """Freezes the canvas of `freeze_B` rows; their logits come from this very forward."""
    out, start_B = state.out, state.start_B
    capacity = out.tokens_BxC.shape[1]
    index_C = jnp.arange(capacity)
    # Prefix and suffix lie side by side in the cache, so a query sees one run of slots.
    behind_BxC = kind.suffix & (index_C >= start_B[:, None] + k) & (index_C < state.end_B[:, None])
    slot_BxC = jnp.where(behind_BxC, index_C - k, capacity)
    slot_BxC = jnp.where(index_C < start_B[:, None], index_C, slot_BxC)
    slot_BxC = jnp.where(freeze_B[:, None], slot_BxC, capacity)
    zero_B = jnp.zeros_like(start_B)
    empty = cache.replace(length_B=jnp.zeros_like(cache.length_B))
    tokens, slots = out.tokens_BxC[:, None], slot_BxC[:, None]
    hidden, new = apply(params, empty, state, tokens, zero_B, 0, slots)
    length_B = start_B + jnp.sum(behind_BxC, axis=1)
    length_B = jnp.where(twice(freeze_B), twice(length_B), cache.length_B)
    return read(params, hidden, window, zero_B), new.replace(length_B=length_B)

  def look(params, state, window, cache, drafts_BxDxW, store_B):
    """The forward over the window's columns."""
    tokens_BxC = state.out.tokens_BxC
    columns, origin_B = num_columns(tokens_BxC.shape[1]), origin(state.start_B)
    position_BxT = origin_B[:, None] + jnp.arange(columns)
    at_BxT = jnp.clip(position_BxT, 0, tokens_BxC.shape[1] - 1)
    around_BxT = jnp.take_along_axis(tokens_BxC, at_BxT, axis=1, mode="clip")
    offset_BxT = position_BxT - state.start_B[:, None]
    place = lambda old, new, offset: jnp.where(
      (offset >= 0) & (offset < new.shape[0]), new[jnp.clip(offset, 0, new.shape[0] - 1)], old
    )
    over_drafts = jax.vmap(jax.vmap(place, (None, 0, None)))
    tokens_BxDxT = over_drafts(around_BxT, drafts_BxDxW, offset_BxT)
    branches = drafts_BxDxW.shape[1]
    slots_BxDxT = None if cache is None else slots(cache, position_BxT, offset_BxT, branches)
    hidden, cache = apply(params, cache, state, tokens_BxDxT, origin_B, lead, slots_BxDxT)
    if cache is not None and kept == 1 and as_rows(branches):
      cache = keep(cache, state, jnp.zeros_like(state.start_B), state.start_B)
    if kind.exact and kept == 1:  # else `keep` says what is committed
      cache = kv_cache.commit(cache, twice(jnp.where(store_B, k, 0)))
    return read(params, hidden, window, origin_B), cache

  def slots(cache, position_BxT, offset_BxT, branches):
    """Where the keys of each branch go: [B, D, T].

    Those of the first go to their positions. What is there is not committed, so it does no harm.
    """
    nowhere = cache.capacity
    stored_BxT = (offset_BxT >= 0) & kind.exact
    at_BxT = jnp.where(stored_BxT, position_BxT, nowhere)
    if aside:
      first_Dx1 = nowhere + num_blocks * k * (jnp.arange(branches)[:, None] - kept)
      return jnp.where(stored_BxT[:, None], first_Dx1 + offset_BxT[:, None], nowhere)
    stays_Dx1 = jnp.arange(branches)[:, None] < kept
    return jnp.where(stays_Dx1, at_BxT[:, None], nowhere)

  def keep(cache, state, best_B, length_B):
    if cache is None:
      return None
    rows = twice(best_B).shape[0]
    branches = cache.k.shape[1] // rows  # of drafts that were run as a batch
    if branches > 1:
      at_B = jnp.arange(rows) * branches + twice(best_B)
      cache = KVCache(cache.k[:, at_B], cache.v[:, at_B], cache.length_B)
    elif aside:
      offset_W = jnp.arange(num_blocks * k)
      source_BxW = cache.capacity + offset_W.size * (twice(best_B)[:, None] - kept) + offset_W
      target_BxW = twice(state.start_B)[:, None] + offset_W
      take = lambda x: jnp.take_along_axis(x, source_BxW[None, :, None, :, None], axis=3)
      cache = kv_cache.write(cache, take(cache.k), take(cache.v), target_BxW)
    return cache.replace(length_B=twice(length_B))

  def run(params, state, window, drafts_BxDxW, store_B, use_B):
    cache = state.cache
    if not kind.frozen:
      return look(params, state, window, cache, drafts_BxDxW, store_B)
    freeze_B = use_B & ~state.opened_B
    shape = (*drafts_BxDxW.shape, lm.config.vocab_size)
    nothing = jnp.zeros(shape, jnp.float32)

    def frozen_first(cache):
      logits, cache = refresh(params, state, window, cache, freeze_B)
      return jnp.broadcast_to(logits, shape), cache

    first, cache = jax.lax.cond(
      jnp.any(freeze_B), frozen_first, lambda cache: (nothing, cache), cache
    )
    later = jax.lax.cond(
      jnp.any(use_B & state.opened_B),
      lambda: look(params, state, window, cache, drafts_BxDxW, store_B)[0],
      lambda: nothing,
    )
    return jnp.where(freeze_B[:, None, None, None], first, later), cache

  return Network(prefill, run, keep, width, stores=kind.exact)
