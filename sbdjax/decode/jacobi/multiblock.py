"""Multi-block Jacobi decoding: Algorithm 1 of Jacobi Forcing.

Behind the open (real-active) block RA stand up to K - 1 pseudo-active blocks of n tokens, in one
causal chain. What a pseudo-active block predicts depends on drafts, so it is not committed; but
each forward it *keeps* the leading drafts that agree with their predictions (a_b), at least one, and
takes the predictions for the others (q_b). When RA is full the first pseudo-active block is promoted:
all of its tokens are drafts of the new RA and are verified again, by now mostly good ones.

The symbols: q_RA, the drafts of the open block (the first one final here: it is c); a_b, the first
`plan.kept_BxP[:, b]` tokens of block b; s = ceil(r n), the spawn threshold.

Where we differ from the authors' code (the version before "upload demo", whose later one throws
pseudo-active blocks away):

* A spawned block is filled up by a `Fill`, not by the padding token.
* The number of active blocks is counted, so it never exceeds K. There it is decremented too often
  at a promotion.
* When RA is full and no other block is active the next one opens at once. There a block of padding
  is spawned and a forward spent on it.
* `eager` (ours): what is verified does not stop at the end of RA. The tokens behind it stand in the
  same causal chain, so leading drafts that are right are final, in whichever block.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from sbdjax.decode.base import Generation
from sbdjax.decode.jacobi_drafts import Drafting, Fill, Moved, Plan, open_block, read, write
from sbdjax.decode.verify import prefix_length
from sbdjax.errors import UsageError


def multiblock(
  n: int, fill: Fill, num_blocks: int = 2, spawn_ratio: float = 0.85, eager: bool = False
) -> Drafting:
  """Up to K = `num_blocks` blocks of n tokens at once.

  Args:
    fill: guesses for the first block, and for what a spawned block copies of RA and lacks.
    spawn_ratio: r: another block is spawned when the newest one has ceil(r n) accepted (or kept)
      tokens.
    eager: verified text may run into the next blocks.

  Raises:
    UsageError: n or K < 1, or r outside [0, 1].
  """
  if n < 1 or num_blocks < 1 or not 0 <= spawn_ratio <= 1:
    raise UsageError(
      f"block_size={n}, num_blocks={num_blocks}, spawn_ratio={spawn_ratio}: the sizes must be at "
      "least 1 and the ratio in [0, 1]"
    )
  num_pseudo = num_blocks - 1
  threshold = math.ceil(spawn_ratio * n)
  index_P, index_N = jnp.arange(num_pseudo), jnp.arange(n)

  def start(key_B, out: Generation):
    tokens, end_B = open_block(fill, n, key_B, out, None)
    zero_B = jnp.zeros_like(end_B)
    return tokens, Plan(end_B, zero_B, jnp.zeros((zero_B.shape[0], num_pseudo), jnp.int32))

  def reach(plan: Plan):
    return plan.end_B - 1 + n * plan.blocks_B

  def verified(plan: Plan):
    return reach(plan) if eager else plan.end_B - 1

  def predict_ahead(plan: Plan, moved: Moved, tokens_BxC):
    """The pseudo-active blocks after a forward: their tokens, and how many each keeps."""
    first_BxP = plan.end_B[:, None] - 1 + n * index_P
    position_BxPN = (first_BxP[..., None] + index_N).reshape(first_BxP.shape[0], -1)
    # As published, they follow the chain without recycled drafts, whichever won.
    chosen_BxT = moved.chosen_BxT if eager else moved.plain_BxT
    chosen = read(chosen_BxT, position_BxPN - moved.before.length_B[:, None])
    old = read(moved.before.tokens_BxC, position_BxPN)
    in_blocks = lambda x: x.reshape(-1, num_pseudo, n)
    # One draft behind the kept ones stays whatever it is; then those that are as predicted.
    stays = index_N <= plan.kept_BxP[..., None]
    kept_BxP = jax.vmap(prefix_length)(stays | in_blocks(old == chosen))
    active = index_P < plan.blocks_B[:, None]
    where = (active[..., None] & ~stays).reshape(position_BxPN.shape)
    # What a forward has made final stands there already.
    where &= position_BxPN >= moved.after.length_B[:, None]
    return write(tokens_BxC, position_BxPN, chosen, where), jnp.where(active, kept_BxP, 0)

  def spawn(plan: Plan, out: Generation, guess_BxN):
    """Another block, if the newest one has come far enough: q_RA cloned and filled up."""
    newest_B = read(plan.kept_BxP, plan.blocks_B[:, None] - 1)[:, 0]
    newest_B = jnp.where(plan.blocks_B > 0, newest_B, out.length_B - (plan.end_B - n))
    # Where every block is full there is nothing to clone, and no place for it.
    spawns_B = (newest_B >= threshold) & (plan.blocks_B < num_pseudo)
    spawns_B &= out.length_B <= reach(plan)
    source_BxN = out.length_B[:, None] - 1 + index_N
    in_ra = source_BxN < plan.end_B[:, None] - 1
    value = jnp.where(in_ra, read(out.tokens_BxC, source_BxN), guess_BxN)
    position_BxN = reach(plan)[:, None] + index_N
    where = jnp.broadcast_to(spawns_B[:, None], position_BxN.shape)
    tokens = write(out.tokens_BxC, position_BxN, value, where)
    return tokens, plan.replace(blocks_B=plan.blocks_B + spawns_B)

  def promote(plan: Plan, out: Generation, guess_BxN):
    """The first block that is not full becomes RA; a new one opens where none is left."""
    full_B = jnp.where(
      out.length_B < plan.end_B, 0, jnp.maximum(out.length_B - plan.end_B, 0) // n + 1
    )
    fresh_B = full_B > plan.blocks_B
    where = jnp.broadcast_to(fresh_B[:, None], guess_BxN.shape)
    tokens = write(out.tokens_BxC, out.length_B[:, None] + index_N, guess_BxN, where)
    kept_BxP = jnp.pad(plan.kept_BxP, ((0, 0), (0, num_pseudo)))
    return tokens, Plan(
      end_B=jnp.where(fresh_B, out.length_B + n, plan.end_B + n * full_B),
      blocks_B=jnp.where(fresh_B, 0, plan.blocks_B - full_B),
      kept_BxP=read(kept_BxP, full_B[:, None] + index_P) if num_pseudo else plan.kept_BxP,
    )

  def advance(key_B, plan: Plan, moved: Moved):
    out = moved.after
    position_BxN = out.length_B[:, None] + index_N
    chosen = read(moved.chosen_BxT, position_BxN - moved.before.length_B[:, None])
    tokens = write(out.tokens_BxC, position_BxN, chosen, position_BxN < plan.end_B[:, None] - 1)
    spawned_BxN = reach(plan)[:, None] + index_N
    guesses = fill(key_B, out, jnp.concatenate([spawned_BxN, position_BxN], axis=1))
    if num_pseudo:
      tokens, kept_BxP = predict_ahead(plan, moved, tokens)
      plan = plan.replace(kept_BxP=kept_BxP)
      tokens, plan = spawn(plan, out.replace(tokens_BxC=tokens), guesses[:, :n])
    return promote(plan, out.replace(tokens_BxC=tokens), guesses[:, n:])

  return Drafting(num_blocks * n, start, verified, reach, advance)
