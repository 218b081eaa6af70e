"""Verified Set Block Decoding: the masked half of an SBD model drafts, its causal half verifies.

An SBD model is two models in one: masks after a text predict k tokens at once, and the causal
half is the next-token model it was before. Here the first drafts for the second, so that the
output is that of autoregressive (AR) decoding, token for token under `verify.ExactMatch`, in
distribution under `verify.Resample`. Not in the SBD paper; kin are PaSS (Monea et al. 2023), BiTA
(Lin et al. 2024, joint generation and verification) and the quadratic decoding of Samragh et al.
2025.

One forward holds a *chain*, the last final token c and the drafts d_1..d_m after it, which the
causal half verifies, and open blocks of k masks after some *points* of the chain, which draft
for the case that exactly this much is accepted. A block begins at the place of the token that
the verification will choose there, so its first mask is wasted and k masks give k - 1 drafts.
Which points a forward drafts after is the schedule, see `drafting`.

With `candidates`, the second choice of each draft is verified as well, as a branch of one token
(and may be a point to draft after): if draft j is rejected and its second choice is what the
target wants, that token's own successor is known in the same forward. This needs common noise.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from sbdjax import cache as kv_cache
from sbdjax import pytree
from sbdjax.cache import KVCache
from sbdjax.decode import base
from sbdjax.decode.base import Limits, Sampler
from sbdjax.decode.causal.ar import prefill
from sbdjax.decode.causal.drafting import AcceptancePoints, Drafting, Drafts, FanOut
from sbdjax.decode.causal.sbd import mask_token
from sbdjax.decode.causal.verified_forward import Forwarded, VerifiedState, branch_slot, forward
from sbdjax.decode.method import Canvas, Method
from sbdjax.decode.tokens import Greedy, TokenSampler
from sbdjax.decode.verify import ExactMatch, Verdict, VerifyRule, draft_key
from sbdjax.lm import LM


@pytree.dataclass
class VerifiedSBD(Method):
  """SBD drafts that the model's own next-token half verifies: the text of AR in fewer forwards.

  Attributes:
    block_size: k, masks of a block, which give k - 1 drafts.
    drafting: what each forward drafts: `Alternating()`, `Fused()` or `FanOut(points)`.
    candidates: verify the second choice of every draft too.
    verify: how drafts are accepted.
    token: takes tokens from logits, drafts as well as (under `ExactMatch`) final ones.

  Raises:
    UsageError: block_size < 2, candidates without common noise, or a token choice that the verify
      rule does not work with.
  """

  block_size: int = pytree.static(default=16)
  drafting: Drafting = FanOut()
  candidates: bool = pytree.static(default=False)
  verify: VerifyRule = ExactMatch()
  token: TokenSampler = Greedy()

  def __post_init__(self) -> None:
    pytree.check(
      self.block_size >= 2,
      f"block_size={self.block_size}: verified decoding needs blocks of at least 2",
    )
    self.verify.check(self.token)
    pytree.check(
      self.verify.common_noise or not self.candidates,
      "candidates need the verify rule exact_match: second choices are no draws",
    )

  @property
  def num_drafts(self) -> int:
    """Drafts of a block: its first mask stands where the verification chooses."""
    return self.block_size - 1

  def canvas(self, state: VerifiedState) -> Canvas:
    # As many tokens as one forward may add.
    return Canvas(state.out.length_B, self.block_size + 1)

  def last_drafts(self, state: VerifiedState) -> jax.Array:
    return jnp.pad(state.last_drafts_BxM, ((0, 0), (0, 2)), constant_values=-1)

  def sampler(self, lm: LM, limits: Limits) -> Sampler:
    k = self.block_size
    mask_id = mask_token(lm)

    def init(params, prompt_BxP, prompt_len_B, key):
      batch, width = prompt_BxP.shape
      # Scratch at the end: a chain that reaches beyond the limit, and a place for each branch.
      capacity = width + limits.max_tokens + 2 * k
      out = base.start(prompt_BxP, prompt_len_B, width + limits.max_tokens, fill=mask_id)
      cache = prefill(lm, params, out.tokens_BxC[:, :width], out.prompt_len_B - 1, capacity)
      out = out.replace(prefill_nfe_B=out.prefill_nfe_B + 1)
      drafts = no_drafts(self, batch, lm.config.vocab_size)
      nothing_BxM = jnp.full((batch, self.num_drafts), -1, jnp.int32)
      return VerifiedState(out, cache, base.row_keys(key, batch), drafts, nothing_BxM)

    def verify_and_draft(params: Any, state: VerifiedState) -> VerifiedState:
      points = self.drafting(state.drafts, self.candidates)
      return advance(self, lm, limits, params, state, k, points)

    def verify_or_draft(params: Any, state: VerifiedState) -> VerifiedState:
      # Rows verify and draft at the same time: all of them start with a draft.
      return jax.lax.cond(
        jnp.any((state.drafts.count_B > 0) & ~state.out.done_B),
        lambda s: advance(self, lm, limits, params, s, k, None),
        lambda s: advance(self, lm, limits, params, s, 1, self.drafting(s.drafts, self.candidates)),
        state,
      )

    step = verify_or_draft if self.drafting.alternates else verify_and_draft
    return Sampler(init, step, lambda state: state.out.done_B)


def no_drafts(method: VerifiedSBD, batch: int, vocab_size: int) -> Drafts:
  """Drafts of rows that have none."""
  shape = (batch, method.num_drafts)
  return Drafts(
    token_BxM=jnp.zeros(shape, jnp.int32),
    second_BxM=jnp.zeros(shape, jnp.int32),
    log_prob_BxMx2=jnp.zeros((*shape, 2), jnp.float32),
    count_B=jnp.zeros((batch,), jnp.int32),
    logits_BxMxV=None if method.verify.common_noise else jnp.zeros((*shape, vocab_size)),
  )


def advance(
  method: VerifiedSBD,
  lm: LM,
  limits: Limits,
  params: Any,
  state: VerifiedState,
  num_chain: int,
  points: AcceptancePoints | None,
) -> VerifiedState:
  """One forward: verifies the chain, appends what is accepted, and takes the drafts after it.

  Args:
    num_chain: tokens of the chain, c included; 1: nothing is verified.
    points: where it drafts; None: nowhere.
  """
  out, drafts, k, m = state.out, state.drafts, method.block_size, num_chain - 1
  num_seconds = m if method.candidates else 0
  forwarded = forward(lm, params, state, num_chain, num_seconds, k, points)
  # Row j of the target: the token at position length + j.
  keys_BxT = base.position_keys(state.key_B, out.length_B[:, None] + jnp.arange(num_chain + 1))
  verified_B = jnp.minimum(drafts.count_B, m)
  verdict = method.verify(
    method.token,
    keys_BxT[:, :-1],
    drafts.token_BxM[:, :m],
    verified_B,
    None if drafts.logits_BxMxV is None else drafts.logits_BxMxV[:, :m],
    lm.logits(params, forwarded.chain_BxTxD),
  )
  n_B, cache = verdict.n_accepted_B, forwarded.cache
  bonus_B, bonus_token_B = jnp.zeros_like(n_B, bool), jnp.zeros_like(n_B)
  if num_seconds:
    bonus_B, bonus_token_B, cache = take_second(
      method, lm, params, state, forwarded, verdict, keys_BxT
    )
  added_B = n_B + 1 + bonus_B
  blocks_B = 0 if points is None else jnp.sum(points.valid, axis=1)
  new_out = base.append(
    out,
    accepted_tokens(drafts.token_BxM[:, :m], verdict, bonus_token_B),
    added_B,
    limits,
    width=1 + verified_B * (1 + method.candidates) + k * blocks_B,
  )
  new_out = new_out.replace(drafted_B=out.drafted_B + verified_B, accepted_B=out.accepted_B + n_B)
  new_drafts = drafts.replace(count_B=jnp.zeros_like(n_B))
  if points is not None:
    new_drafts = next_drafts(method, lm, params, state, forwarded, points, n_B, bonus_B)
  cache = kv_cache.commit(cache, jnp.where(out.done_B, 0, added_B))
  was_verified_BxM = jnp.arange(method.num_drafts) < verified_B[:, None]
  last_drafts = jnp.where(was_verified_BxM, drafts.token_BxM, -1)
  old, new = (out, drafts, state.last_drafts_BxM), (new_out, new_drafts, last_drafts)
  out, drafts, last_drafts = base.keep_done(out.done_B, old, new)
  return state.replace(out=out, cache=cache, drafts=drafts, last_drafts_BxM=last_drafts)


def take_second(
  method: VerifiedSBD,
  lm: LM,
  params: Any,
  state: VerifiedState,
  forwarded: Forwarded,
  verdict: Verdict,
  keys_BxT: jax.Array,
) -> tuple[jax.Array, jax.Array, KVCache]:
  """Where a rejected draft's second choice is the token in its place, one more token is known.

  Returns:
    bonus_B: bool, whether it is.
    token_B: int32, the token after the second choice.
    cache: with the second choice at its place in the text.
  """
  drafts, n_B = state.drafts, verdict.n_accepted_B
  rows_B = jnp.arange(n_B.shape[0])
  at_B = jnp.minimum(n_B, forwarded.seconds_BxSxD.shape[1] - 1)
  bonus_B = (n_B < drafts.count_B) & (drafts.second_BxM[rows_B, at_B] == verdict.token_B)
  logits_BxV = lm.logits(params, forwarded.seconds_BxSxD[rows_B, at_B])
  token_B = jax.vmap(method.token)(keys_BxT[rows_B, n_B + 1], logits_BxV)
  cache = forwarded.cache
  place_B = jnp.where(bonus_B, state.out.length_B + n_B, cache.capacity)
  source_B = branch_slot(cache, method.block_size, at_B)
  return bonus_B, token_B, kv_cache.copy_slot(cache, source_B, place_B)


def accepted_tokens(draft_BxM: jax.Array, verdict: Verdict, bonus_token_B: jax.Array) -> jax.Array:
  """int32 [B, M + 2]: the accepted drafts, the token after them, and the bonus token."""
  n_Bx1 = verdict.n_accepted_B[:, None]
  draft_BxT = jnp.pad(draft_BxM, ((0, 0), (0, 2)))
  index_T = jnp.arange(draft_BxT.shape[1])
  token_BxT = jnp.where(index_T < n_Bx1, draft_BxT, verdict.token_B[:, None])
  return jnp.where(index_T > n_Bx1, bonus_token_B[:, None], token_BxT)


def next_drafts(
  method: VerifiedSBD,
  lm: LM,
  params: Any,
  state: VerifiedState,
  forwarded: Forwarded,
  points: AcceptancePoints,
  n_accepted_B: jax.Array,
  bonus_B: jax.Array,
) -> Drafts:
  """Drafts of the block at the point where the row ended up, none where there is no such block."""
  end_B = n_accepted_B + bonus_B
  found_BxP = points.valid & (points.after == end_B[:, None])
  found_BxP &= points.via_second == bonus_B[:, None]
  which_B, rows_B = jnp.argmax(found_BxP, axis=1), jnp.arange(end_B.shape[0])
  first_B = state.out.length_B + end_B + 1
  return draft(
    method,
    state.key_B,
    lm.logits(params, forwarded.blocks_BxPxkxD[rows_B, which_B, 1:]),
    first_B[:, None] + jnp.arange(method.num_drafts),
    jnp.where(jnp.any(found_BxP, axis=1), method.num_drafts, 0),
  )


def draft(
  method: VerifiedSBD,
  key_B: jax.Array,
  logits_BxMxV: jax.Array,
  position_BxM: jax.Array,
  count_B: jax.Array,
) -> Drafts:
  """Drafts for `position_BxM`, and their second choices, from the logits of the masks there."""
  keys_BxM = base.position_keys(key_B, position_BxM)
  if not method.verify.common_noise:
    keys_BxM = jax.vmap(jax.vmap(draft_key))(keys_BxM)
  pick = jax.vmap(jax.vmap(method.token))
  token_BxM = pick(keys_BxM, logits_BxMxV)
  is_first = jnp.arange(logits_BxMxV.shape[-1]) == token_BxM[..., None]
  second_BxM = pick(keys_BxM, jnp.where(is_first, -1e30, logits_BxMxV))
  log_p = jax.nn.log_softmax(logits_BxMxV, axis=-1)
  pair = jnp.take_along_axis(log_p, jnp.stack([token_BxM, second_BxM], axis=-1), axis=-1)
  logits = None if method.verify.common_noise else logits_BxMxV
  return Drafts(token_BxM, second_BxM, pair, count_B, logits)
