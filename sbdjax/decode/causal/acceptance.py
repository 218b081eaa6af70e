"""What a forward of verified SBD accepts: of the chain, of its second choices, or of the branch."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from sbdjax.decode.causal.drafting import AcceptancePoints


class Verified(NamedTuple):
  """Drafts after c, and what the target says of them.

  Attributes:
    draft_BxM: int32, the drafts.
    count_B: int32, how many of them there are.
    n_accepted_B: int32, accepted drafts (a prefix).
    token_B: int32, the token after them.
  """

  draft_BxM: jax.Array
  count_B: jax.Array
  n_accepted_B: jax.Array
  token_B: jax.Array


class Accepted(NamedTuple):
  """Which tokens of a forward become text: after them comes one more, which was not in it.

  Attributes:
    chain_B: int32, drafts of the chain.
    bonus_B: bool, then the second choice of the next one.
    branch_B: int32, drafts of the branch; where there are any, none of the chain.
  """

  chain_B: jax.Array
  bonus_B: jax.Array
  branch_B: jax.Array

  @property
  def drafts_B(self) -> jax.Array:
    """First choices: a second choice takes the place of the token that the target gives anyway."""
    return self.chain_B + self.branch_B

  @property
  def added_B(self) -> jax.Array:
    """Tokens that the text gains."""
    return self.drafts_B + self.bonus_B + 1


def of_chain(chain: Verified, bonus_B: jax.Array) -> Accepted:
  """What is accepted of a tree without a branch."""
  return Accepted(chain.n_accepted_B, bonus_B, jnp.zeros_like(chain.n_accepted_B))


def longer(chain: Verified, bonus_B: jax.Array, branch: Verified) -> tuple[Verified, Accepted]:
  """Of chain and branch the one that gives more tokens, and what is accepted of it.

  Both give a prefix of one text: their noise is common. Of equally long ones it is the chain, after
  which drafts may stand; the branch stands in for a chain without drafts.
  """
  gained_B = chain.n_accepted_B + bonus_B
  wins_B = (branch.n_accepted_B > gained_B) | (chain.count_B == 0)
  most = max(chain.draft_BxM.shape[1], branch.draft_BxM.shape[1])
  widened = [v._replace(draft_BxM=widen(v.draft_BxM, most)) for v in (branch, chain)]
  winner = Verified(
    *(
      jnp.where(wins_B.reshape(-1, *[1] * (a.ndim - 1)), a, b)
      for a, b in zip(*widened, strict=True)
    )
  )
  return winner, Accepted(
    chain_B=jnp.where(wins_B, 0, chain.n_accepted_B),
    bonus_B=bonus_B & ~wins_B,
    branch_B=jnp.where(wins_B, branch.n_accepted_B, 0),
  )


def widen(values_BxM: jax.Array, most: int, fill: int = 0) -> jax.Array:
  """[B, most], with `fill` after the values."""
  more = most - values_BxM.shape[1]
  return jnp.pad(values_BxM, ((0, 0), (0, more)), constant_values=fill)


def shown(winner: Verified, most: int) -> jax.Array:
  """int32 [B, most]: the drafts that were verified, -1 for nothing."""
  index_M = jnp.arange(winner.draft_BxM.shape[1])
  return widen(jnp.where(index_M < winner.count_B[:, None], winner.draft_BxM, -1), most, -1)


def accepted_tokens(winner: Verified, bonus_token_B: jax.Array) -> jax.Array:
  """int32 [B, M + 2]: the accepted drafts, the token after them, and the bonus token."""
  n_Bx1 = winner.n_accepted_B[:, None]
  draft_BxT = widen(winner.draft_BxM, winner.draft_BxM.shape[1] + 2)
  index_T = jnp.arange(draft_BxT.shape[1])
  token_BxT = jnp.where(index_T < n_Bx1, draft_BxT, winner.token_B[:, None])
  return jnp.where(index_T > n_Bx1, bonus_token_B[:, None], token_BxT)


def slots(
  accepted: Accepted,
  length_B: jax.Array,
  sizes: tuple[int, int, int],
  stored: int,
  nowhere: int,
) -> jax.Array:
  """int32 [B, `stored`]: every token of the text has the slot of its position.

  A second choice that was taken has that of the draft it stands for; the others and the drafts
  after the text's end have none, nor has what fills the entries up.

  Args:
    accepted: what becomes text.
    length_B: int32, tokens of the text before.
    sizes: tokens of the chain, c included, of the branch, and second choices: their order.
    stored: entries that are written, at least as many.
    nowhere: a slot that does not exist.
  """
  j_T, j_R, j_S = map(jnp.arange, sizes)
  length_Bx1 = length_B[:, None]
  chain_BxT = jnp.where(j_T <= accepted.chain_B[:, None], length_Bx1 - 1 + j_T, nowhere)
  branch_BxR = jnp.where(j_R < accepted.branch_B[:, None], length_Bx1 + j_R, nowhere)
  taken_BxS = accepted.bonus_B[:, None] & (j_S == accepted.chain_B[:, None])
  seconds_BxS = jnp.where(taken_BxS, length_Bx1 + j_S, nowhere)
  return widen(jnp.concatenate([chain_BxT, branch_BxR, seconds_BxS], axis=1), stored, nowhere)


def ended_at(points: AcceptancePoints, accepted: Accepted) -> tuple[jax.Array, jax.Array]:
  """Whether a block stands after the point where a row ended up, bool [B], and which, int32 [B].

  None stands after a draft of the branch.
  """
  after_B = accepted.chain_B + accepted.bonus_B
  found_BxP = points.valid & (points.after == after_B[:, None])
  found_BxP &= points.via_second == accepted.bonus_B[:, None]
  found_BxP &= accepted.branch_B[:, None] == 0
  return jnp.any(found_BxP, axis=1), jnp.argmax(found_BxP, axis=1)
