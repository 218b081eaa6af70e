"""One forward of verified SBD: a chain, second choices and blocks of masks in one sequence."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sbdjax import pytree
from sbdjax.cache import Entries, KVCache
from sbdjax.decode.base import Generation
from sbdjax.decode.causal.drafting import AcceptancePoints, Drafts
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
    last_drafts_BxM: int32, what the last forward verified after the text before it; -1 for nothing.
  """

  out: Generation
  cache: KVCache
  key_B: jax.Array
  drafts: Drafts
  last_drafts_BxM: jax.Array


class Forwarded(NamedTuple):
  """What one network forward gave.

  Attributes:
    chain_BxTxD: hidden states of c and the drafts.
    seconds_BxSxD: of the second choices, none where they are not verified.
    blocks_BxPxkxD: of the masks after each point.
    entries: keys and values of the chain, then of the second choices.
  """

  chain_BxTxD: jax.Array
  seconds_BxSxD: jax.Array
  blocks_BxPxkxD: jax.Array
  entries: Entries


class InputTokens(NamedTuple):
  """Tokens of a forward and their positions, int32 [B, T] each."""

  token: jax.Array
  position: jax.Array


def forward(
  lm: LM,
  params: Any,
  state: VerifiedState,
  num_chain: int,
  num_seconds: int,
  k: int,
  points: AcceptancePoints | None,
) -> Forwarded:
  """One network forward over the chain, `num_seconds` second choices and a block per point."""
  batch = state.out.length_B.shape[0]
  after = [jnp.broadcast_to(jnp.arange(num_seconds), (batch, num_seconds))]
  via = [jnp.full((batch, num_seconds), -1)]
  inputs = [chain_tokens(state, num_chain)]
  if num_seconds:
    inputs.append(second_tokens(state, num_seconds))
  num_blocks = 0
  if points is not None:
    num_blocks = points.after.shape[1]
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
      chain=num_chain,
      sizes=(1,) * num_seconds + (k,) * num_blocks,
    ),
    cache=state.cache,
    write=False,
  )
  chain, seconds, blocks = jnp.split(hidden, [num_chain, num_chain + num_seconds], axis=1)
  blocks = blocks.reshape(batch, num_blocks, k, hidden.shape[-1])
  return Forwarded(chain, seconds, blocks, entries.first(num_chain + num_seconds))


def chain_tokens(state: VerifiedState, num_chain: int) -> InputTokens:
  """c and the first `num_chain` - 1 drafts."""
  last_Bx1 = state.out.length_B[:, None] - 1
  c_Bx1 = jnp.take_along_axis(state.out.tokens_BxC, last_Bx1, axis=1)
  token_BxT = jnp.concatenate([c_Bx1, state.drafts.token_BxM[:, : num_chain - 1]], axis=1)
  return InputTokens(token_BxT, last_Bx1 + jnp.arange(num_chain))


def second_tokens(state: VerifiedState, num_seconds: int) -> InputTokens:
  """Second choices of the first `num_seconds` drafts, each a branch of one token."""
  assert state.drafts.second_BxM is not None
  position_BxS = state.out.length_B[:, None] + jnp.arange(num_seconds)
  return InputTokens(state.drafts.second_BxM[:, :num_seconds], position_BxS)


def block_tokens(
  state: VerifiedState, points: AcceptancePoints, k: int, mask_id: int
) -> InputTokens:
  """k masks after each point."""
  start_BxP = state.out.length_B[:, None] + points.after
  position_BxPxk = start_BxP[..., None] + jnp.arange(k)
  position_BxT = position_BxPxk.reshape(start_BxP.shape[0], -1)
  return InputTokens(jnp.full_like(position_BxT, mask_id), position_BxT)
