"""What one forward of verified SBD adds to every row, and what the next one verifies.

A forward ran the chain, perhaps a branch, second choices and blocks (`verified_forward.Tree`). From its
logits: which drafts are the target's own tokens, what follows them, and the drafts of the block that
stands where the accepted text ends.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from sbdjax.cache import Entries
from sbdjax.decode import base
from sbdjax.decode.base import Generation, Limits
from sbdjax.decode.causal.acceptance import (
  Verified,
  accepted_tokens,
  ended_at,
  longer,
  of_chain,
  shown,
  slots,
)
from sbdjax.decode.causal.drafting import Drafting, Drafts
from sbdjax.decode.causal.lookup import Lookup
from sbdjax.decode.causal.verified_forward import Forwarded, Tree, VerifiedState, forward
from sbdjax.decode.tokens import TokenSampler
from sbdjax.decode.verify import VerifyRule, draft_key
from sbdjax.lm import LM


class Settings(Protocol):
  """What a forward needs to know of the method, which is `verified_sbd.VerifiedSBD`."""

  @property
  def block_size(self) -> int: ...
  @property
  def drafting(self) -> Drafting: ...
  @property
  def candidates(self) -> bool: ...
  @property
  def lookup(self) -> Lookup: ...
  @property
  def verify(self) -> VerifyRule: ...
  @property
  def token(self) -> TokenSampler: ...
  @property
  def num_drafts(self) -> int: ...
  @property
  def most_drafts(self) -> int: ...


def no_drafts(method: Settings, batch: int, vocab_size: int) -> Drafts:
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
  method: Settings, lm: LM, limits: Limits, params: Any, state: VerifiedState, tree: Tree
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
    # Those beyond the end of the text are no tokens of it.
    accepted_B=out.accepted_B + jnp.minimum(accepted.drafts_B, new_out.length_B - out.length_B),
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
      out.nfe_B,
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
  method: Settings,
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


def stored_by(method: Settings) -> int:
  """Tokens of a forward that may enter the cache: chain, branch and second choices."""
  seconds = method.num_drafts if method.candidates else 0
  return 1 + method.num_drafts + method.lookup.width + seconds


def take_second(
  method: Settings,
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
  method: Settings,
  key_B: jax.Array,
  forward_B: jax.Array,
  logits_BxMxV: jax.Array,
  position_BxM: jax.Array,
  count_B: jax.Array,
) -> Drafts:
  """Drafts for `position_BxM`, and their second choices, from the logits of the masks there.

  Args:
    forward_B: int32, a number that no other forward of the row has. A place that is drafted again has other
      noise then, unless it is the target's own: whether there is a block may depend on drafts after the rejected one.
  """
  keys_BxM = base.position_keys(key_B, position_BxM)
  if not method.verify.common_noise:
    fresh = lambda key, forward: jax.random.fold_in(draft_key(key), forward)
    keys_BxM = jax.vmap(jax.vmap(fresh, (0, None)))(keys_BxM, forward_B)
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
