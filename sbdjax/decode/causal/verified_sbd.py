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

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sbdjax import cache as kv_cache
from sbdjax import pytree
from sbdjax.cache import Entries
from sbdjax.decode import base
from sbdjax.decode.base import Generation, Limits, Sampler
from sbdjax.decode.causal.ar import prefill
from sbdjax.decode.causal.drafting import AcceptancePoints, Drafting, Drafts, FanOut
from sbdjax.decode.causal.sbd import mask_token
from sbdjax.decode.causal.verified_forward import Forwarded, VerifiedState, forward
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

  def cache_slots(self, width: int, limits: Limits) -> int:
    # Scratch at the end: a chain that reaches beyond the limit.
    return width + limits.max_tokens + self.block_size

  def sampler(self, lm: LM, limits: Limits) -> Sampler:
    k = self.block_size
    mask_id = mask_token(lm)

    def init(params, prompt_BxP, prompt_len_B, key, kept=None):
      batch, width = prompt_BxP.shape
      slots = self.cache_slots(width, limits)
      out = base.start(prompt_BxP, prompt_len_B, width + limits.max_tokens, fill=mask_id)
      cache = prefill(lm, params, out.tokens_BxC[:, :width], out.prompt_len_B - 1, slots, kept)
      out = out.replace(prefill_nfe_B=out.prefill_nfe_B + 1)
      drafts = no_drafts(self, batch, lm.config.vocab_size)
      nothing_BxM = jnp.full((batch, self.num_drafts), -1, jnp.int32)
      return VerifiedState(out, cache, base.row_keys(key, batch), drafts, nothing_BxM)

    def verify_and_draft(params: Any, state: VerifiedState) -> Advanced:
      points = self.drafting(state.drafts, self.candidates)
      return advance(self, lm, limits, params, state, k, points)

    def verify_or_draft(params: Any, state: VerifiedState) -> Advanced:
      # Rows verify and draft at the same time: all of them start with a draft.
      points = self.drafting(state.drafts, self.candidates)
      return jax.lax.cond(
        jnp.any((state.drafts.count_B > 0) & ~state.out.done_B),
        lambda: advance(self, lm, limits, params, state, k, None),
        lambda: advance(self, lm, limits, params, state, 1, points),
      )

    forward_once = verify_or_draft if self.drafting.alternates else verify_and_draft

    def step(params: Any, state: VerifiedState) -> VerifiedState:
      found, done_B = forward_once(params, state), state.out.done_B
      cache = kv_cache.write(state.cache, *found.entries, found.slots_BxT)
      cache = kv_cache.commit(cache, jnp.where(done_B, 0, found.added_B))
      old = (state.out, state.drafts, state.last_drafts_BxM)
      new = (found.out, found.drafts, found.last_drafts_BxM)
      out, drafts, last_drafts = base.keep_done(done_B, old, new)
      return state.replace(out=out, cache=cache, drafts=drafts, last_drafts_BxM=last_drafts)

    return Sampler(init, step, lambda state: state.out.done_B)


def no_drafts(method: VerifiedSBD, batch: int, vocab_size: int) -> Drafts:
  """Drafts of rows that have none."""
  shape, choices = (batch, method.num_drafts), 1 + method.candidates
  return Drafts(
    token_BxM=jnp.zeros(shape, jnp.int32),
    second_BxM=jnp.zeros(shape, jnp.int32) if method.candidates else None,
    log_prob_BxMxC=jnp.zeros((*shape, choices)) if method.drafting.needs_log_probs else None,
    count_B=jnp.zeros((batch,), jnp.int32),
    logits_BxMxV=None if method.verify.common_noise else jnp.zeros((*shape, vocab_size)),
  )


class Advanced(NamedTuple):
  """What one forward makes of every row, finished ones included.

  Attributes:
    out: with what it accepts.
    drafts: what the next forward verifies.
    last_drafts_BxM: int32, what it verified; -1 for nothing.
    entries: keys and values to store.
    slots_BxT: int32, where; beyond the capacity for what the text does not hold.
    added_B: int32, how many tokens it adds to the text.
  """

  out: Generation
  drafts: Drafts
  last_drafts_BxM: jax.Array
  entries: Entries
  slots_BxT: jax.Array
  added_B: jax.Array


def advance(
  method: VerifiedSBD,
  lm: LM,
  limits: Limits,
  params: Any,
  state: VerifiedState,
  num_chain: int,
  points: AcceptancePoints | None,
) -> Advanced:
  """One forward: verifies the chain, appends what is accepted, and takes the drafts after it.

  Args:
    num_chain: tokens of the chain, c included; 1: nothing is verified.
    points: where it drafts; None: nowhere.
  """
  out, drafts, k, m = state.out, state.drafts, method.block_size, num_chain - 1
  num_seconds = m if method.candidates else 0
  forwarded = forward(lm, params, state, num_chain, num_seconds, k, points)
  chain_logits, block_logits = predict(lm, params, forwarded)
  # Row j of the target: the token at position length + j.
  keys_BxT = base.position_keys(state.key_B, out.length_B[:, None] + jnp.arange(num_chain + 1))
  verified_B = jnp.minimum(drafts.count_B, m)
  verdict = method.verify(
    method.token,
    keys_BxT[:, :-1],
    drafts.token_BxM[:, :m],
    verified_B,
    None if drafts.logits_BxMxV is None else drafts.logits_BxMxV[:, :m],
    chain_logits,
  )
  n_B = verdict.n_accepted_B
  bonus_B, bonus_token_B = jnp.zeros_like(n_B, bool), jnp.zeros_like(n_B)
  if num_seconds:
    bonus_B, bonus_token_B = take_second(method, lm, params, drafts, forwarded, verdict, keys_BxT)
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
    found_B, which_B = ended_at(points, n_B, bonus_B)
    if block_logits is None:
      rows_B = jnp.arange(n_B.shape[0])
      block_logits = lm.logits(params, forwarded.blocks_BxPxkxD[rows_B, which_B, 1:])
    first_B = out.length_B + added_B
    new_drafts = draft(
      method,
      state.key_B,
      block_logits,
      first_B[:, None] + jnp.arange(method.num_drafts),
      jnp.where(found_B, method.num_drafts, 0),
    )
  was_verified_BxM = jnp.arange(method.num_drafts) < verified_B[:, None]
  return Advanced(
    out=new_out,
    drafts=new_drafts,
    last_drafts_BxM=jnp.where(was_verified_BxM, drafts.token_BxM, -1),
    entries=forwarded.entries.first(stored_by(method)),
    slots_BxT=slots(method, state, num_chain, num_seconds, n_B, bonus_B),
    added_B=added_B,
  )


def predict(lm: LM, params: Any, forwarded: Forwarded) -> tuple[jax.Array, jax.Array | None]:
  """Logits [B, T, V] of the chain, and [B, k - 1, V] of the block where there is only one.

  A product with the head costs its reading, so one serves both. Of several blocks a row takes one,
  and which one the chain's logits say first.
  """
  num_chain = forwarded.chain_BxTxD.shape[1]
  if forwarded.blocks_BxPxkxD.shape[1] != 1:
    return lm.logits(params, forwarded.chain_BxTxD), None
  hidden = jnp.concatenate([forwarded.chain_BxTxD, forwarded.blocks_BxPxkxD[:, 0, 1:]], axis=1)
  logits = lm.logits(params, hidden)
  return logits[:, :num_chain], logits[:, num_chain:]


def stored_by(method: VerifiedSBD) -> int:
  """Tokens of a forward that may enter the cache: a chain, and the second choices."""
  return method.block_size + (method.num_drafts if method.candidates else 0)


def slots(
  method: VerifiedSBD,
  state: VerifiedState,
  num_chain: int,
  num_seconds: int,
  n_accepted_B: jax.Array,
  bonus_B: jax.Array,
) -> jax.Array:
  """int32 [B, `stored_by`]: every token of the text has the slot of its position.

  A second choice that was taken has that of the draft it stands for; the others and the drafts
  after the text's end have none, nor has what fills the entries up.
  """
  last_Bx1, nowhere = state.out.length_B[:, None] - 1, state.cache.capacity
  j_T, j_S = jnp.arange(num_chain), jnp.arange(num_seconds)
  chain_BxT = jnp.where(j_T <= n_accepted_B[:, None], last_Bx1 + j_T, nowhere)
  taken_BxS = bonus_B[:, None] & (j_S == n_accepted_B[:, None])
  seconds_BxS = jnp.where(taken_BxS, last_Bx1 + 1 + j_S, nowhere)
  found = jnp.concatenate([chain_BxT, seconds_BxS], axis=1)
  more = stored_by(method) - found.shape[1]
  return jnp.pad(found, ((0, 0), (0, more)), constant_values=nowhere)


def take_second(
  method: VerifiedSBD,
  lm: LM,
  params: Any,
  drafts: Drafts,
  forwarded: Forwarded,
  verdict: Verdict,
  keys_BxT: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Where a rejected draft's second choice is the token in its place, one more token is known.

  Returns:
    bonus_B: bool, whether it is.
    token_B: int32, the token after the second choice.
  """
  assert drafts.second_BxM is not None
  n_B = verdict.n_accepted_B
  rows_B = jnp.arange(n_B.shape[0])
  at_B = jnp.minimum(n_B, forwarded.seconds_BxSxD.shape[1] - 1)
  bonus_B = (n_B < drafts.count_B) & (drafts.second_BxM[rows_B, at_B] == verdict.token_B)
  logits_BxV = lm.logits(params, forwarded.seconds_BxSxD[rows_B, at_B])
  return bonus_B, jax.vmap(method.token)(keys_BxT[rows_B, n_B + 1], logits_BxV)


def accepted_tokens(draft_BxM: jax.Array, verdict: Verdict, bonus_token_B: jax.Array) -> jax.Array:
  """int32 [B, M + 2]: the accepted drafts, the token after them, and the bonus token."""
  n_Bx1 = verdict.n_accepted_B[:, None]
  draft_BxT = jnp.pad(draft_BxM, ((0, 0), (0, 2)))
  index_T = jnp.arange(draft_BxT.shape[1])
  token_BxT = jnp.where(index_T < n_Bx1, draft_BxT, verdict.token_B[:, None])
  return jnp.where(index_T > n_Bx1, bonus_token_B[:, None], token_BxT)


def ended_at(
  points: AcceptancePoints, n_accepted_B: jax.Array, bonus_B: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Whether a block stands after the point where a row ended up, bool [B], and which, int32 [B]."""
  found_BxP = points.valid & (points.after == (n_accepted_B + bonus_B)[:, None])
  found_BxP &= points.via_second == bonus_B[:, None]
  return jnp.any(found_BxP, axis=1), jnp.argmax(found_BxP, axis=1)


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
  token_BxM, second_BxM, log_probs = pick(keys_BxM, logits_BxMxV), None, None
  if method.candidates:
    is_first = jnp.arange(logits_BxMxV.shape[-1]) == token_BxM[..., None]
    second_BxM = pick(keys_BxM, jnp.where(is_first, -1e30, logits_BxMxV))
  if method.drafting.needs_log_probs:
    chosen = jnp.stack([token_BxM] if second_BxM is None else [token_BxM, second_BxM], axis=-1)
    log_z = jax.nn.logsumexp(logits_BxMxV, axis=-1, keepdims=True)
    log_probs = jnp.take_along_axis(logits_BxMxV, chosen, axis=-1) - log_z
  logits = None if method.verify.common_noise else logits_BxMxV
  return Drafts(token_BxM, second_BxM, log_probs, count_B, logits)
