"""Multi-block Jacobi decoding: Algorithm 1 of Jacobi Forcing.

After the open (real-active) block RA stand up to K - 1 pseudo-active blocks of n tokens, in one
causal chain. What a pseudo-active block predicts depends on drafts, so it is not committed; but
each forward it *keeps* the leading drafts that agree with their predictions (a_b), at least one, and
takes the predictions for the others (q_b). When RA is full the first pseudo-active block is promoted:
all of its tokens are drafts of the new RA and are verified again, by now mostly good ones.

The symbols: q_RA, the drafts of the open block (the first one final here: it is c); a_b, the first
`kept_BxP[:, b]` tokens of block b; s = ceil(r n), the spawn threshold.

Where we differ from the authors' code (the version before "upload demo", whose later one throws
pseudo-active blocks away):

* A spawned block is filled up by first drafts, not by the padding token.
* The number of active blocks is counted, so it never exceeds K. There it is decremented too often
  at a promotion.
* When RA is full and no other block is active the next one opens at once. There a block of padding
  is spawned and a forward spent on it.
* `eager` (ours): what is verified does not stop at the end of RA. The tokens after it stand in the
  same causal chain, so leading drafts that are right are final, in whichever block.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from sbdjax.decode import base
from sbdjax.decode.base import Generation
from sbdjax.decode.jacobi.drafts import FirstDrafts, ForwardOutcome, JacobiBlocks, read
from sbdjax.decode.verify import prefix_length


def draft_next(
  first: FirstDrafts,
  n: int,
  threshold: int,
  eager: bool,
  key_B: jax.Array,
  blocks: JacobiBlocks,
  outcome: ForwardOutcome,
) -> tuple[jax.Array, JacobiBlocks]:
  """tokens_BxC with the drafts for the next forward, and where they stand.

  Args:
    first: fills up spawned blocks, and a block that opens where no other is active.
    n: tokens of a block.
    threshold: s, accepted (or kept) tokens of the newest block that spawn another.
    eager: verified text may run into the next blocks.
    blocks: what the forward of `outcome` worked on.
  """
  out = outcome.after
  position_BxN = out.length_B[:, None] + jnp.arange(n)
  in_ra_BxN = position_BxN < blocks.end_B[:, None] - 1
  tokens = base.put(out.tokens_BxC, position_BxN, outcome.chosen_for(position_BxN), in_ra_BxN)
  spawned_BxN = blocks.drafts_end(n)[:, None] + jnp.arange(n)
  first_Bx2N = first(key_B, out, jnp.concatenate([spawned_BxN, position_BxN], axis=1))
  if blocks.kept_BxP.shape[1]:
    tokens, blocks = predict_ahead(n, eager, blocks, outcome, tokens)
    tokens, blocks = spawn(threshold, blocks, out.replace(tokens_BxC=tokens), first_Bx2N[:, :n])
  return promote(blocks, out.replace(tokens_BxC=tokens), first_Bx2N[:, n:])


def predict_ahead(
  n: int, eager: bool, blocks: JacobiBlocks, outcome: ForwardOutcome, tokens_BxC: jax.Array
) -> tuple[jax.Array, JacobiBlocks]:
  """The pseudo-active blocks after a forward: their tokens, and how many each keeps."""
  num_pseudo = blocks.kept_BxP.shape[1]
  index_P, index_N = jnp.arange(num_pseudo), jnp.arange(n)
  first_BxP = blocks.end_B[:, None] - 1 + n * index_P
  position_BxPN = (first_BxP[..., None] + index_N).reshape(first_BxP.shape[0], -1)
  # As published, they follow the chain without recycled drafts, whichever won.
  chosen_BxT = outcome.chosen_BxT if eager else outcome.plain_BxT
  chosen_BxPN = read(chosen_BxT, position_BxPN - outcome.before.length_B[:, None])
  old_BxPN = read(outcome.before.tokens_BxC, position_BxPN)
  as_chosen_BxPxN = (old_BxPN == chosen_BxPN).reshape(-1, num_pseudo, n)
  # One draft after the kept ones stays whatever it is; then those that are as predicted.
  stays_BxPxN = index_N <= blocks.kept_BxP[..., None]
  kept_BxP = jax.vmap(prefix_length)(stays_BxPxN | as_chosen_BxPxN)
  active_BxP = index_P < blocks.blocks_B[:, None]
  where = (active_BxP[..., None] & ~stays_BxPxN).reshape(position_BxPN.shape)
  # What a forward has made final stands there already.
  where &= position_BxPN >= outcome.after.length_B[:, None]
  tokens_BxC = base.put(tokens_BxC, position_BxPN, chosen_BxPN, where)
  return tokens_BxC, blocks.replace(kept_BxP=jnp.where(active_BxP, kept_BxP, 0))


def spawn(
  threshold: int, blocks: JacobiBlocks, out: Generation, first_BxN: jax.Array
) -> tuple[jax.Array, JacobiBlocks]:
  """Another block, if the newest one has come far enough: q_RA cloned and filled up."""
  n, num_pseudo = first_BxN.shape[1], blocks.kept_BxP.shape[1]
  end_B = blocks.drafts_end(n)
  newest_B = read(blocks.kept_BxP, blocks.blocks_B[:, None] - 1)[:, 0]
  newest_B = jnp.where(blocks.blocks_B > 0, newest_B, out.length_B - (blocks.end_B - n))
  # Where every block is full there is nothing to clone, and no place for it.
  spawns_B = (newest_B >= threshold) & (blocks.blocks_B < num_pseudo) & (out.length_B <= end_B)
  source_BxN = out.length_B[:, None] - 1 + jnp.arange(n)
  in_ra_BxN = source_BxN < blocks.end_B[:, None] - 1
  value_BxN = jnp.where(in_ra_BxN, read(out.tokens_BxC, source_BxN), first_BxN)
  position_BxN = end_B[:, None] + jnp.arange(n)
  where = jnp.broadcast_to(spawns_B[:, None], position_BxN.shape)
  tokens_BxC = base.put(out.tokens_BxC, position_BxN, value_BxN, where)
  return tokens_BxC, blocks.replace(blocks_B=blocks.blocks_B + spawns_B)


def promote(
  blocks: JacobiBlocks, out: Generation, first_BxN: jax.Array
) -> tuple[jax.Array, JacobiBlocks]:
  """The first block that is not full becomes RA; a new one opens where none is left."""
  n, num_pseudo = first_BxN.shape[1], blocks.kept_BxP.shape[1]
  past_B = out.length_B - blocks.end_B
  full_B = jnp.where(past_B < 0, 0, past_B // n + 1)
  fresh_B = full_B > blocks.blocks_B
  where = jnp.broadcast_to(fresh_B[:, None], first_BxN.shape)
  position_BxN = out.length_B[:, None] + jnp.arange(n)
  tokens_BxC = base.put(out.tokens_BxC, position_BxN, first_BxN, where)
  kept_BxP = blocks.kept_BxP
  if num_pseudo:
    padded = jnp.pad(kept_BxP, ((0, 0), (0, num_pseudo)))
    kept_BxP = read(padded, full_B[:, None] + jnp.arange(num_pseudo))
  return tokens_BxC, JacobiBlocks(
    end_B=jnp.where(fresh_B, out.length_B + n, blocks.end_B + n * full_B),
    blocks_B=jnp.where(fresh_B, 0, blocks.blocks_B - full_B),
    kept_BxP=kept_BxP,
  )
