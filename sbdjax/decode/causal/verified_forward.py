"""One forward of verified SBD: chain, branch, second choices and blocks of masks in one sequence."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sbdjax import pytree
from sbdjax.cache import Entries, KVCache
from sbdjax.decode.base import Generation
from sbdjax.decode.causal.drafting import AcceptancePoints, Drafts
from sbdjax.decode.causal.lookup import Found
from sbdjax.decode.causal.sbd import mask_token
from sbdjax.lm import LM
from sbdjax.masks import DraftTree


@pytree.dataclass
class VerifiedState(pytree.Struct):
  """State of the verified SBD sampler.

  Attributes:
    out: final tokens; every one of them verified.
    cache: committed: every final token but the last.
    key_B: one key per row; noise is keyed by (row, position).
    drafts: what the next forward verifies.
    last_drafts_BxM: int32, what the last forward verified after the text before it, of chain and
      branch the one that was accepted for longer; -1 for nothing.
  """

  out: Generation
  cache: KVCache
  key_B: jax.Array
  drafts: Drafts
  last_drafts_BxM: jax.Array


class Tree(NamedTuple):
  """What a forward holds, in this order.

  Attributes:
    num_chain: tokens of the chain, c included; 1: no drafts of the masked half are verified.
    found: drafts of the branch; None: it has none.
    num_seconds: second choices: of the first so many drafts of the chain.
    points: where blocks of masks stand; None: nowhere.
  """

  num_chain: int
  found: Found | None
  num_seconds: int
  points: AcceptancePoints | None

  @property
  def num_branch(self) -> int:
    return 0 if self.found is None else self.found.token_BxR.shape[1]

  @property
  def num_blocks(self) -> int:
    return 0 if self.points is None else self.points.after.shape[1]

  @property
  def clean(self) -> tuple[int, int, int]:
    """How many tokens of the chain, of the branch, and second choices: all but the masks."""
    return self.num_chain, self.num_branch, self.num_seconds


class Forwarded(NamedTuple):
  """What one network forward gave.

  Attributes:
    chain_BxTxD: hidden states of c and the drafts.
    branch_BxRxD: of the branch, none where there is none.
    seconds_BxSxD: of the second choices, none where they are not verified.
    blocks_BxPxkxD: of the masks after each point.
    entries: keys and values of the chain, then of the branch, then of the second choices.
  """

  chain_BxTxD: jax.Array
  branch_BxRxD: jax.Array
  seconds_BxSxD: jax.Array
  blocks_BxPxkxD: jax.Array
  entries: Entries


class InputTokens(NamedTuple):
  """Tokens of a forward and their positions, int32 [B, T] each."""

  token: jax.Array
  position: jax.Array


def forward(lm: LM, params: Any, state: VerifiedState, tree: Tree, k: int) -> Forwarded:
  """One network forward over `tree`, whose blocks are of k masks."""
  batch, num_seconds, points = state.out.length_B.shape[0], tree.num_seconds, tree.points
  after = [jnp.broadcast_to(jnp.arange(num_seconds), (batch, num_seconds))]
  via = [jnp.full((batch, num_seconds), -1)]
  inputs = [chain_tokens(state, tree.num_chain)]
  if tree.found is not None:
    inputs.append(next_tokens(state, tree.found.token_BxR))
  if num_seconds:
    assert state.drafts.second_BxM is not None
    inputs.append(next_tokens(state, state.drafts.second_BxM[:, :num_seconds]))
  if points is not None:
    inputs.append(block_tokens(state, points, k, mask_token(lm)))
    after.append(jnp.where(points.via_second, points.after - 1, points.after))
    via.append(jnp.where(points.via_second, points.after - 1, -1))
  joined = InputTokens(*(jnp.concatenate(x, axis=1) for x in zip(*inputs, strict=True)))
  hidden, entries = lm.apply(
    params,
    joined.token,
    positions_BxT=joined.position,
    mask=DraftTree(
      length_B=state.cache.length_B,
      after_BxG=jnp.concatenate(after, axis=1),
      via_BxG=jnp.concatenate(via, axis=1),
      chain=tree.num_chain,
      sizes=(1,) * num_seconds + (k,) * tree.num_blocks,
      branch=tree.num_branch,
    ),
    cache=state.cache,
    write=False,
  )
  ends = list(itertools.accumulate(tree.clean))
  chain, branch, seconds, blocks = jnp.split(hidden, ends, axis=1)
  blocks = blocks.reshape(batch, tree.num_blocks, k, hidden.shape[-1])
  return Forwarded(chain, branch, seconds, blocks, entries.first(ends[-1]))


def chain_tokens(state: VerifiedState, num_chain: int) -> InputTokens:
  """c and the first `num_chain` - 1 drafts."""
  last_Bx1 = state.out.length_B[:, None] - 1
  c_Bx1 = jnp.take_along_axis(state.out.tokens_BxC, last_Bx1, axis=1)
  token_BxT = jnp.concatenate([c_Bx1, state.drafts.token_BxM[:, : num_chain - 1]], axis=1)
  return InputTokens(token_BxT, last_Bx1 + jnp.arange(num_chain))


def next_tokens(state: VerifiedState, token_BxS: jax.Array) -> InputTokens:
  """Tokens for the places after c: other drafts than the chain's."""
  return InputTokens(token_BxS, state.out.length_B[:, None] + jnp.arange(token_BxS.shape[1]))


def block_tokens(
  state: VerifiedState, points: AcceptancePoints, k: int, mask_id: int
) -> InputTokens:
  """k masks after each point."""
  start_BxP = state.out.length_B[:, None] + points.after
  position_BxPxk = start_BxP[..., None] + jnp.arange(k)
  position_BxT = position_BxPxk.reshape(start_BxP.shape[0], -1)
  return InputTokens(jnp.full_like(position_BxT, mask_id), position_BxT)
