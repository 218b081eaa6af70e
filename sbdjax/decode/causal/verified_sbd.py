"""Verified Set Block Decoding: the masked half of an SBD model drafts, its causal half verifies.

An SBD model is two models in one: masks behind a text predict k tokens at once, and the causal
half is the next-token model it was before. Here the first drafts for the second, so that the
output is that of autoregressive (AR) decoding, token for token under `verify.exact_match`, in
distribution under `verify.accept_or_resample`. Not in the SBD paper; kin are PaSS (Monea et al.
2023), BiTA (Lin et al. 2024, joint generation and verification) and the quadratic decoding of
Samragh et al. 2025.

One forward holds a *chain*, the last final token c and the drafts d_1..d_m behind it, which the
causal half verifies, and open blocks of k masks behind some *points* of the chain, which draft
for the case that exactly this much is accepted. A block begins at the place of the token that
the verification will choose there, so its first mask is wasted and k masks give k - 1 drafts.

Three schedules with one output:

* `alternating()`: a forward that drafts, a forward that verifies;
* `fused()`: the verifying forward also drafts behind the whole chain; after a rejection the next
  forward has nothing to verify;
* `fan_out(points)`: it drafts behind the `points` most probable of all acceptance points (0: all
  of them), so every forward both verifies and drafts.

With `candidates`, the second choice of each draft is verified as well, as a branch of one token
(and may be a point to draft behind): if draft j is rejected and its second choice is what the
target wants, that token's own successor is known in the same forward. This needs common noise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from sbdjax import cache as kv_cache
from sbdjax.cache import KVCache
from sbdjax.decode import base
from sbdjax.decode.ar import prefill
from sbdjax.decode.base import Generation, Limits, Sampler
from sbdjax.decode.sampling import Choose
from sbdjax.decode.verify import VerifyRule, append, draft_key
from sbdjax.errors import UsageError
from sbdjax.lm import LM, suppress
from sbdjax.masks import DraftTree


@flax.struct.dataclass
class Drafts:
  """The drafts behind the last final token of each row.

  Attributes:
    token_BxM: int32, draft of the j-th token after it.
    second_BxM: int32, second choice at the same place.
    log_prob_BxMx2: float32, log-probability of the two under the masked half.
    count_B: int32, how many there are.
    logits_BxMxV: what they were drawn from, if the verify rule needs it, else None.
  """

  token_BxM: jax.Array
  second_BxM: jax.Array
  log_prob_BxMx2: jax.Array
  count_B: jax.Array
  logits_BxMxV: jax.Array | None


@flax.struct.dataclass
class VerifiedState:
  """State of the sampler.

  Attributes:
    out: final tokens; every one of them verified.
    cache: committed: every final token but the last.
    key_B: one key a row; noise is keyed by (row, position).
    drafts: what the next forward verifies.
    tried_BxM: int32, what the last forward verified behind the text before it; -1 for nothing.
  """

  out: Generation
  cache: KVCache
  key_B: jax.Array
  drafts: Drafts
  tried_BxM: jax.Array


class Points(NamedTuple):
  """Where blocks of masks stand: int32 / bool [B, P] each.

  Attributes:
    after: drafts accepted at this point.
    via_second: the point lies behind the second choice of draft `after`, not the draft itself.
    valid: the row has that many drafts.
  """

  after: jax.Array
  via_second: jax.Array
  valid: jax.Array


class Schedule(NamedTuple):
  """What a forward does.

  Attributes:
    points: (drafts, candidates) -> Points.
    alternate: verify in one forward and draft in the next.
  """

  points: Callable[[Drafts, bool], Points]
  alternate: bool = False


def _whole_chain(drafts: Drafts, candidates: bool) -> Points:
  del candidates
  after = drafts.count_B[:, None]
  return Points(after, jnp.zeros_like(after, bool), jnp.ones_like(after, bool))


def alternating() -> Schedule:
  """Schedule (i): two forwards a round."""
  return Schedule(_whole_chain, alternate=True)


def fused() -> Schedule:
  """Schedule (ii): draft on the assumption that everything is accepted."""
  return Schedule(_whole_chain)


def _point_log_probs(drafts: Drafts, candidates: bool) -> jax.Array:
  """log P(the row ends up at a point) by the drafts' own probabilities.

  [B, M + 1]: exactly j drafts accepted; with candidates [B, 2M + 1]: then, for j = 1..M, j - 1
  accepted and the second choice of draft j taken. -inf where the row has no such point.
  """
  first, second = drafts.log_prob_BxMx2[..., 0], drafts.log_prob_BxMx2[..., 1]
  m = first.shape[1]
  reach = jnp.cumsum(jnp.pad(first, ((0, 0), (1, 0))), axis=1)  # drafts 1..j are all accepted
  rejected = jnp.log(jnp.maximum(-jnp.expm1(first), 1e-6))
  stop = jnp.where(jnp.arange(m) < drafts.count_B[:, None], rejected, 0.0)
  chain = reach + jnp.pad(stop, ((0, 0), (0, 1)))
  chain = jnp.where(jnp.arange(m + 1) <= drafts.count_B[:, None], chain, -jnp.inf)
  if not candidates:
    return chain
  branch = jnp.where(jnp.arange(m) < drafts.count_B[:, None], reach[:, :-1] + second, -jnp.inf)
  return jnp.concatenate([chain, branch], axis=1)


def fan_out(points: int = 0) -> Schedule:
  """Schedule (iii): draft behind the `points` most probable acceptance points; 0: behind all."""
  if points < 0:
    raise UsageError(f"points={points}: give the number of blocks a forward drafts, 0 for all")

  def choose_points(drafts: Drafts, candidates: bool) -> Points:
    log_p = _point_log_probs(drafts, candidates)
    m, total = drafts.token_BxM.shape[1], log_p.shape[1]
    top, index = jax.lax.top_k(log_p, min(points or total, total))
    via_second = index > m
    return Points(jnp.where(via_second, index - m, index), via_second, top > -jnp.inf)

  return Schedule(choose_points)


def make_sampler(
  lm: LM,
  limits: Limits,
  choose: Choose,
  rule: VerifyRule,
  schedule: Schedule,
  block_size: int,
  candidates: bool = False,
) -> Sampler:
  """Decodes as AR with `choose` does, several tokens a forward.

  Args:
    choose: takes tokens from logits, drafts as well as (under `exact_match`) final ones.
    rule: `verify.exact_match(choose)`, or `verify.accept_or_resample` of the same warping.
    schedule: `alternating()`, `fused()` or `fan_out(points)`.
    block_size: k >= 2, masks of a block.
    candidates: verify second choices too.

  Raises:
    UsageError: block_size < 2, a model without a mask token, or candidates without common noise.
  """
  k, mask_id = block_size, lm.config.mask_id
  num_drafts = k - 1
  if k < 2:
    raise UsageError(f"block_size={k}: verified decoding needs blocks of at least 2")
  if mask_id is None:
    raise UsageError("this checkpoint has no mask token: fine-tune it with the SBD loss first")
  if candidates and not rule.common_noise:
    raise UsageError("candidates need the verify rule exact_match: second choices are no draws")

  def init(params, prompt_BxP, prompt_len_B, key):
    batch, width = prompt_BxP.shape
    # Scratch at the end: a chain that reaches beyond the limit, and a place for each branch.
    capacity = width + limits.max_tokens + 2 * k
    out = base.start(prompt_BxP, prompt_len_B, width + limits.max_tokens, fill=mask_id)
    cache = prefill(lm, params, out.tokens_BxC[:, :width], out.prompt_len_B - 1, capacity)
    out = out.replace(prefill_nfe_B=out.prefill_nfe_B + 1)
    shape = (batch, num_drafts)
    drafts = Drafts(
      token_BxM=jnp.zeros(shape, jnp.int32),
      second_BxM=jnp.zeros(shape, jnp.int32),
      log_prob_BxMx2=jnp.zeros((*shape, 2), jnp.float32),
      count_B=jnp.zeros((batch,), jnp.int32),
      logits_BxMxV=None if rule.common_noise else jnp.zeros((*shape, lm.config.vocab_size)),
    )
    nothing = jnp.full(shape, -1, jnp.int32)
    return VerifiedState(out, cache, base.row_keys(key, batch), drafts, nothing)

  def logits_of(params, hidden):
    return suppress(lm.logits(params, hidden), mask_id)

  def position_keys(key_B, position_BxT):
    return jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))(key_B, position_BxT)

  def draft(params, state, hidden_BxMxD, position_BxM, count_B) -> Drafts:
    """New drafts for `position_BxM` from the masks standing there."""
    logits = logits_of(params, hidden_BxMxD)
    keys = position_keys(state.key_B, position_BxM)
    if not rule.common_noise:
      keys = jax.vmap(jax.vmap(draft_key))(keys)
    pick = jax.vmap(jax.vmap(choose))
    token = pick(keys, logits)
    is_first = jnp.arange(logits.shape[-1]) == token[..., None]
    second = pick(keys, jnp.where(is_first, -1e30, logits))
    log_p = jax.nn.log_softmax(logits, axis=-1)
    pair = jnp.take_along_axis(log_p, jnp.stack([token, second], axis=-1), axis=-1)
    return Drafts(token, second, pair, count_B, None if rule.common_noise else logits)

  def forward(params, state: VerifiedState, num_chain: int, points: Points | None):
    """One network forward: hidden states of the chain, the branches and the blocks."""
    out, drafts = state.out, state.drafts
    batch = out.length_B.shape[0]
    num_seconds = num_chain - 1 if candidates else 0
    last_Bx1 = out.length_B[:, None] - 1
    c_Bx1 = jnp.take_along_axis(out.tokens_BxC, last_Bx1, axis=1)
    j_M = jnp.arange(1, num_chain)
    tokens = [c_Bx1, drafts.token_BxM[:, : num_chain - 1], drafts.second_BxM[:, :num_seconds]]
    positions = [last_Bx1, last_Bx1 + j_M, (last_Bx1 + j_M)[:, :num_seconds]]
    # A branch shares its position with a draft; until one of the two is chosen it lives apart.
    branch_slot = state.cache.capacity - k + jnp.arange(num_seconds)
    slots = [last_Bx1, last_Bx1 + j_M, jnp.broadcast_to(branch_slot, (batch, num_seconds))]
    after = [jnp.broadcast_to(jnp.arange(num_seconds), (batch, num_seconds))]
    via = [jnp.full((batch, num_seconds), -1)]
    num_blocks = 0 if points is None else points.after.shape[1]
    if num_blocks:
      start_BxP = last_Bx1 + 1 + points.after
      block_BxPk = (start_BxP[..., None] + jnp.arange(k)).reshape(batch, -1)
      tokens.append(jnp.full_like(block_BxPk, mask_id))
      positions.append(block_BxPk)
      slots.append(jnp.full_like(block_BxPk, state.cache.capacity))
      after.append(jnp.where(points.via_second, points.after - 1, points.after))
      via.append(jnp.where(points.via_second, points.after - 1, -1))
    hidden, cache = lm.apply(
      params,
      jnp.concatenate(tokens, axis=1),
      positions_BxT=jnp.concatenate(positions, axis=1),
      mask=DraftTree(
        length_B=state.cache.length_B,
        after_BxG=jnp.concatenate(after, axis=1),
        via_BxG=jnp.concatenate(via, axis=1),
        chain=num_chain,
        sizes=(1,) * num_seconds + (k,) * num_blocks,
      ),
      cache=state.cache,
      slots_BxT=jnp.concatenate(slots, axis=1),
    )
    split = jnp.split(hidden, [num_chain, num_chain + num_seconds], axis=1)
    return (*split, cache)

  def advance(params, state: VerifiedState, num_chain: int, points: Points | None):
    """Verifies the chain, appends what is accepted, and takes the drafts behind it."""
    out, drafts = state.out, state.drafts
    rows = jnp.arange(out.length_B.shape[0])
    chain, seconds, blocks, cache = forward(params, state, num_chain, points)
    m = num_chain - 1
    # Row j of the target: the token at position length + j.
    position_BxM1 = out.length_B[:, None] + jnp.arange(num_chain + 1)
    keys = position_keys(state.key_B, position_BxM1)
    verdict = rule.verify(
      keys[:, :-1],
      drafts.token_BxM[:, :m],
      jnp.minimum(drafts.count_B, m),
      None if rule.common_noise else drafts.logits_BxMxV[:, :m],
      logits_of(params, chain),
    )
    n_B = verdict.n_accepted_B
    bonus_B, bonus_token_B = jnp.zeros_like(n_B, bool), jnp.zeros_like(n_B)
    if candidates and m:
      at_B = jnp.minimum(n_B, m - 1)
      bonus_B = (n_B < drafts.count_B) & (drafts.second_BxM[rows, at_B] == verdict.token_B)
      bonus_logits = logits_of(params, seconds[rows, at_B])
      bonus_token_B = jax.vmap(choose)(keys[rows, n_B + 1], bonus_logits)
      branch_B = cache.capacity - k + at_B
      cache = kv_cache.copy_slot(
        cache, branch_B, jnp.where(bonus_B, out.length_B + n_B, cache.capacity)
      )
    added_B = n_B + 1 + bonus_B
    index_T = jnp.arange(num_chain + 1)
    drafted = jnp.pad(drafts.token_BxM[:, :m], ((0, 0), (0, 2)))
    new_tokens = jnp.where(index_T < n_B[:, None], drafted, verdict.token_B[:, None])
    new_tokens = jnp.where(index_T > n_B[:, None], bonus_token_B[:, None], new_tokens)
    new_out = append(out, new_tokens, added_B, limits)
    verified_B = jnp.minimum(drafts.count_B, m)
    blocks_B = 0 if points is None else jnp.sum(points.valid, axis=1)
    new_out = new_out.replace(
      query_tokens_B=out.query_tokens_B + 1 + verified_B * (1 + candidates) + k * blocks_B,
      drafted_B=out.drafted_B + verified_B,
      accepted_B=out.accepted_B + n_B,
    )

    next_drafts = drafts.replace(count_B=jnp.zeros_like(n_B))
    if points is not None:
      end_B = n_B + bonus_B
      found = points.valid & (points.after == end_B[:, None])
      found &= points.via_second == bonus_B[:, None]
      which_B = jnp.argmax(found, axis=1)
      blocks = blocks.reshape(rows.shape[0], -1, k, blocks.shape[-1])
      next_drafts = draft(
        params,
        state,
        blocks[rows, which_B, 1:],
        (out.length_B + added_B)[:, None] + jnp.arange(num_drafts),
        jnp.where(jnp.any(found, axis=1), num_drafts, 0),
      )
    cache = kv_cache.commit(cache, jnp.where(out.done_B, 0, added_B))
    verified = (jnp.arange(num_drafts) < drafts.count_B[:, None]) & (m > 0)
    tried = jnp.where(verified, drafts.token_BxM, -1)
    old, new = (out, drafts, state.tried_BxM), (new_out, next_drafts, tried)
    out, drafts, tried = base.keep_done(out.done_B, old, new)
    return state.replace(out=out, cache=cache, drafts=drafts, tried_BxM=tried)

  def verify_and_draft(params, state):
    return advance(params, state, k, schedule.points(state.drafts, candidates))

  def alternate(params, state):
    # Rows verify and draft at the same time: all of them start with a draft.
    return jax.lax.cond(
      jnp.any((state.drafts.count_B > 0) & ~state.out.done_B),
      lambda s: advance(params, s, k, None),
      lambda s: advance(params, s, 1, schedule.points(s.drafts, candidates)),
      state,
    )

  step = alternate if schedule.alternate else verify_and_draft
  return Sampler(init, step, lambda state: state.out.done_B)
