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

With a `lookup`, drafts that were found in the row's own text are verified too, as a second chain
after c, the *branch*: [c d_1..d_m | g_1..g_r | second choices | blocks]. What is accepted of either
is a prefix of AR's text, so the longer one counts; this needs common noise as well. No block stands
after the branch: where it wins, the next forward has no drafts of the masked half. A forward in
which no row found anything is one without the branch.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sbdjax import cache as kv_cache
from sbdjax import pytree
from sbdjax.cache import Entries
from sbdjax.decode import base
from sbdjax.decode.base import Generation, Limits, Sampler
from sbdjax.decode.causal.acceptance import (
  Verified,
  accepted_tokens,
  ended_at,
  longer,
  of_chain,
  shown,
  slots,
)
from sbdjax.decode.causal.ar import prefill
from sbdjax.decode.causal.drafting import AcceptancePoints, Drafting, Drafts, FanOut
from sbdjax.decode.causal.lookup import Found, Lookup, NoLookup
from sbdjax.decode.causal.sbd import mask_token
from sbdjax.decode.causal.verified_forward import Forwarded, Tree, VerifiedState, forward
from sbdjax.decode.method import Canvas, Method
from sbdjax.decode.tokens import Greedy, TokenSampler
from sbdjax.decode.verify import ExactMatch, VerifyRule, draft_key
from sbdjax.lm import LM


@pytree.dataclass
class VerifiedSBD(Method):
  """SBD drafts that the model's own next-token half verifies: the text of AR in fewer forwards.

  Attributes:
    block_size: k, masks of a block, which give k - 1 drafts.
    drafting: what each forward drafts: `Alternating()`, `Fused()`, `FanOut(points)` or, to verify
      nothing but what is looked up, `NoDrafting()`.
    candidates: verify the second choice of every draft too.
    lookup: what looks up drafts in the text, to verify beside the others: `NoLookup()`, or
      `TextLookup()`.
    verify: how drafts are accepted.
    token: takes tokens from logits, drafts as well as (under `ExactMatch`) final ones.

  Raises:
    UsageError: block_size < 2, candidates or a lookup without common noise, a token choice that
      the verify rule does not work with, or nothing to verify.
  """

  block_size: int = pytree.static(default=16)
  drafting: Drafting = FanOut()
  candidates: bool = pytree.static(default=False)
  lookup: Lookup = NoLookup()
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
    pytree.check(
      self.verify.common_noise or not self.lookup.width,
      "lookup needs the verify rule exact_match: what is found in a text is no draw",
    )
    pytree.check(
      self.drafting.drafts or (self.lookup.width > 0 and not self.candidates),
      "drafting=none verifies only what is looked up: set lookup=text, and no candidates",
    )

  def idle(self) -> tuple[str, ...]:
    return () if self.drafting.drafts else ("block_size",)

  @property
  def num_drafts(self) -> int:
    """Drafts of a block: its first mask stands where the verification chooses."""
    return self.block_size - 1 if self.drafting.drafts else 0

  @property
  def most_drafts(self) -> int:
    """Drafts of the longest chain that a forward verifies."""
    return max(self.num_drafts, self.lookup.width)

  def canvas(self, state: VerifiedState) -> Canvas:
    # As many tokens as one forward may add.
    return Canvas(state.out.length_B, self.most_drafts + 2)

  def last_drafts(self, state: VerifiedState) -> jax.Array:
    return jnp.pad(state.last_drafts_BxM, ((0, 0), (0, 2)), constant_values=-1)

  def cache_slots(self, width: int, limits: Limits) -> int:
    # Scratch at the end: a chain that reaches beyond the limit.
    return width + limits.max_tokens + self.most_drafts + 1

  def sampler(self, lm: LM, limits: Limits) -> Sampler:
    k = self.block_size
    mask_id = mask_token(lm) if self.drafting.drafts else 0

    def init(params, prompt_BxP, prompt_len_B, key, kept=None):
      batch, width = prompt_BxP.shape
      capacity = self.cache_slots(width, limits)
      out = base.start(prompt_BxP, prompt_len_B, width + limits.max_tokens, mask_id, limits.stops)
      cache = prefill(lm, params, out.tokens_BxC[:, :width], out.prompt_len_B - 1, capacity, kept)
      out = out.replace(prefill_nfe_B=out.prefill_nfe_B + 1)
      drafts = no_drafts(self, batch, lm.config.vocab_size)
      nothing_BxM = jnp.full((batch, self.most_drafts), -1, jnp.int32)
      return VerifiedState(out, cache, base.row_keys(key, batch), drafts, nothing_BxM)

    def advance_over(
      params: Any,
      state: VerifiedState,
      num_chain: int,
      found: Found | None,
      points: AcceptancePoints | None,
    ) -> Advanced:
      num_seconds = num_chain - 1 if self.candidates else 0
      tree = Tree(num_chain, found, num_seconds, points)
      return advance(self, lm, limits, params, state, tree)

    def verify_and_draft(params: Any, state: VerifiedState, found: Found | None) -> Advanced:
      points = self.drafting(state.drafts, self.candidates)
      return advance_over(params, state, k, found, points)

    def verify_or_draft(params: Any, state: VerifiedState, found: Found | None) -> Advanced:
      points = self.drafting(state.drafts, self.candidates)
      has_drafts_B, open_B = state.drafts.count_B > 0, ~state.out.done_B
      draft = partial(advance_over, params, state, 1, found, points)
      verify = partial(advance_over, params, state, k, found, None)
      some = jnp.any(has_drafts_B & open_B)
      if not self.lookup.width or open_B.shape[0] == 1:
        # Rows verify and draft at the same time: all of them start with a draft.
        return jax.lax.cond(some, verify, draft)
      # After a branch that wins a row drafts, as it would alone, while others may verify.
      lacking = points._replace(valid=points.valid & ~has_drafts_B[:, None])
      both = partial(advance_over, params, state, k, found, lacking)
      others = jnp.any(~has_drafts_B & open_B)
      return jax.lax.cond(some, lambda: jax.lax.cond(others, both, verify), draft)

    def verify_branch(params: Any, state: VerifiedState, found: Found | None) -> Advanced:
      return advance_over(params, state, 1, found, None)

    over_drafts = verify_or_draft if self.drafting.alternates else verify_and_draft
    over_drafts = over_drafts if self.drafting.drafts else verify_branch

    def forward_once(params: Any, state: VerifiedState) -> Advanced:
      if not self.lookup.width:
        return over_drafts(params, state, None)
      found = self.lookup(state.out.tokens_BxC, state.out.length_B)
      return jax.lax.cond(
        jnp.any((found.count_B > 0) & ~state.out.done_B),
        lambda: over_drafts(params, state, found),
        lambda: over_drafts(params, state, None),
      )

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
  method: VerifiedSBD, lm: LM, limits: Limits, params: Any, state: VerifiedState, tree: Tree
) -> Advanced:
  """One forward: verifies drafts, appends what is accepted, and takes the drafts after it."""
  out, drafts, k, m = state.out, state.drafts, method.block_size, tree.num_chain - 1
  forwarded = forward(lm, params, state, tree, k)
  logits = predict(lm, params, forwarded)
  # Row j of the target: the token at position length + j.
  width = max(tree.num_chain, tree.num_branch + 1) + 1
  keys_BxT = base.position_keys(state.key_B, out.length_B[:, None] + jnp.arange(width))
  verify = partial(verified, method, keys_BxT)
  drawn_from = None if drafts.logits_BxMxV is None else drafts.logits_BxMxV[:, :m]
  chain = verify(
    drafts.token_BxM[:, :m], jnp.minimum(drafts.count_B, m), drawn_from, logits.chain_BxTxV
  )
  bonus_B = jnp.zeros_like(out.done_B)
  bonus_token_B = jnp.zeros_like(chain.token_B)
  if tree.num_seconds:
    bonus_B, bonus_token_B = take_second(method, lm, params, drafts, forwarded, chain, keys_BxT)
  winner, accepted = chain, of_chain(chain, bonus_B)
  looked_up_B: jax.Array | int = 0
  if tree.found is not None:
    branch = verify(tree.found.token_BxR, tree.found.count_B, None, logits.branch_BxRxV)
    (winner, accepted), looked_up_B = longer(chain, bonus_B, branch), branch.count_B
  blocks_B = 0 if tree.points is None else jnp.sum(tree.points.valid, axis=1)
  new_out = base.append(
    out,
    accepted_tokens(winner, bonus_token_B),
    accepted.added_B,
    limits,
    width=1 + chain.count_B * (1 + method.candidates) + looked_up_B + k * blocks_B,
  )
  new_out = new_out.replace(
    drafted_B=out.drafted_B + chain.count_B + looked_up_B,
    accepted_B=out.accepted_B + accepted.drafts_B,
  )
  new_drafts = drafts.replace(count_B=jnp.zeros_like(drafts.count_B))
  if tree.points is not None:
    ended_B, which_B = ended_at(tree.points, accepted)
    block_logits = logits.block_BxMxV
    if block_logits is None:
      rows_B = jnp.arange(which_B.shape[0])
      block_logits = lm.logits(params, forwarded.blocks_BxPxkxD[rows_B, which_B, 1:])
    first_B = out.length_B + accepted.added_B
    new_drafts = draft(
      method,
      state.key_B,
      block_logits,
      first_B[:, None] + jnp.arange(method.num_drafts),
      jnp.where(ended_B, method.num_drafts, 0),
    )
  stored = stored_by(method)
  return Advanced(
    out=new_out,
    drafts=new_drafts,
    last_drafts_BxM=shown(winner, method.most_drafts),
    entries=forwarded.entries.first(stored),
    slots_BxT=slots(accepted, out.length_B, tree.clean, stored, state.cache.capacity),
    added_B=accepted.added_B,
  )


class Predicted(NamedTuple):
  """Logits after one forward.

  Attributes:
    chain_BxTxV: of the tokens after c and after each draft.
    branch_BxRxV: of those after c and after each draft of the branch, where there is one.
    block_BxMxV: of the drafts of a block, k - 1; None unless there is just one block.
  """

  chain_BxTxV: jax.Array
  branch_BxRxV: jax.Array
  block_BxMxV: jax.Array | None


def predict(lm: LM, params: Any, forwarded: Forwarded) -> Predicted:
  """A product with the head costs its reading, so one serves chain, branch and block.

  Of several blocks a row takes one, and which one the chain's logits say first.
  """
  parts = [forwarded.chain_BxTxD, forwarded.branch_BxRxD]
  one_block = forwarded.blocks_BxPxkxD.shape[1] == 1
  if one_block:
    parts.append(forwarded.blocks_BxPxkxD[:, 0, 1:])
  ends = list(itertools.accumulate(part.shape[1] for part in parts))
  logits = lm.logits(params, jnp.concatenate(parts, axis=1))
  chain, branch, block = jnp.split(logits, ends[:2], axis=1)
  branch = jnp.concatenate([chain[:, :1], branch], axis=1)
  return Predicted(chain, branch, block if one_block else None)


def verified(
  method: VerifiedSBD,
  keys_BxT: jax.Array,
  draft_BxM: jax.Array,
  count_B: jax.Array,
  draft_logits_BxMxV: jax.Array | None,
  target_logits_BxM1xV: jax.Array,
) -> Verified:
  """Drafts after c, verified with the noise of their positions."""
  keys_BxM1 = keys_BxT[:, : target_logits_BxM1xV.shape[1]]
  verdict = method.verify(
    method.token, keys_BxM1, draft_BxM, count_B, draft_logits_BxMxV, target_logits_BxM1xV
  )
  return Verified(draft_BxM, count_B, verdict.n_accepted_B, verdict.token_B)


def stored_by(method: VerifiedSBD) -> int:
  """Tokens of a forward that may enter the cache: chain, branch and second choices."""
  seconds = method.num_drafts if method.candidates else 0
  return 1 + method.num_drafts + method.lookup.width + seconds


def take_second(
  method: VerifiedSBD,
  lm: LM,
  params: Any,
  drafts: Drafts,
  forwarded: Forwarded,
  chain: Verified,
  keys_BxT: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Where a rejected draft's second choice is the token in its place, one more token is known.

  Returns:
    bonus_B: bool, whether it is.
    token_B: int32, the token after the second choice.
  """
  assert drafts.second_BxM is not None
  n_B = chain.n_accepted_B
  rows_B = jnp.arange(n_B.shape[0])
  at_B = jnp.minimum(n_B, forwarded.seconds_BxSxD.shape[1] - 1)
  bonus_B = (n_B < drafts.count_B) & (drafts.second_BxM[rows_B, at_B] == chain.token_B)
  logits_BxV = lm.logits(params, forwarded.seconds_BxSxD[rows_B, at_B])
  return bonus_B, jax.vmap(method.token)(keys_BxT[rows_B, n_B + 1], logits_BxV)


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
