"""Jacobi decoding: guess the next n tokens, and let one forward correct all of them at once.

Equation 3 of Jacobi Forcing (Hu et al. 2025; Song et al. 2021, Santilli et al. 2023): with x the
text and y the n tokens behind it,

    y_i^(j+1) = argmax p(y | y_<i^(j), x)    for i = 1..n, all in one causal forward,

until y stands still; that y is what autoregressive (AR) decoding puts out. A prediction is final as
soon as everything before it is, so a forward adds 1 + (leading drafts that were right) tokens, and
their keys enter the cache at once: the open block shrinks. Verification is a rule of
`decode.verify`, so temperature > 0 is exact too.

The authors' code counts the same forwards in another way: there a block begins with its first token
already known, from the last forward of the block before.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from sbdjax.cache import KVCache
from sbdjax.decode import sampling
from sbdjax.decode.chains import as_batch
from sbdjax.decode.sampling import Choose
from sbdjax.decode.verify import prefix_length
from sbdjax.lm import LM


class Trajectory(NamedTuple):
  """The points of one block of each row on its way to the fixed point.

  Attributes:
    points_BxIxn: int32 [B, n + 1, n], y^(0), y^(1), ..., y^(k); behind y^(k) it is repeated.
    num_points_B: int32, k + 1 in 2..n + 1. y^(k) is the fixed point; y^(k-1) may be equal to it
      (if its last token was right by luck), no earlier point is.
    cache: committed: the text and the fixed point without its last token.
  """

  points_BxIxn: jax.Array
  num_points_B: jax.Array
  cache: KVCache


def block_trajectory(
  lm: LM, params, cache: KVCache, last_B, draft_Bxn, choose: Choose | None = None, key_B=None
) -> Trajectory:
  """Equation 3 from y^(0) = `draft_Bxn` to the fixed point of every row, recording all points.

  One block for the whole batch in one `lax.while_loop` (rows that are finished wait for the
  slowest). EOS is a token like any other here: cut the fixed point where it is used.

  Args:
    cache: committed: the text without its last token; n slots must be free.
    last_B: int32, the last token of the text.
    draft_Bxn: int32, y^(0).
    choose: takes a token from logits (default: greedy); `key_B`, one a row, gives each position
      its noise, so that draws have a fixed point too.
  """
  choose = sampling.greedy() if choose is None else choose
  batch, n = draft_Bxn.shape
  chains = as_batch(lm, 1, n)
  key_B = jax.random.split(jax.random.key(0), batch) if key_B is None else key_B
  position_Bxn = cache.length_B[:, None] + 1 + jnp.arange(n)
  keys_Bxn = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))(key_B, position_Bxn)

  def iterate(carry):
    points_BxIxn, num_points_B, done_B, cache, i = carry
    point_Bxn = points_BxIxn[:, i]
    chain_BxT = jnp.concatenate([last_B[:, None], point_Bxn[:, :-1]], axis=1)
    logits, cache = chains.run(params, cache, chain_BxT[:, None])
    new_Bxn = jax.vmap(jax.vmap(choose))(keys_Bxn, logits[:, 0])
    final_B = prefix_length(new_Bxn[:, :-1] == point_Bxn[:, :-1]) == n - 1
    # Every later row too, so that the fixed point is repeated to the end.
    points_BxIxn = jnp.where(jnp.arange(n + 1)[:, None] > i, new_Bxn[:, None], points_BxIxn)
    return points_BxIxn, num_points_B + ~done_B, done_B | final_B, cache, i + 1

  points = jnp.repeat(draft_Bxn.astype(jnp.int32)[:, None], n + 1, axis=1)
  start = (points, jnp.ones((batch,), jnp.int32), jnp.zeros((batch,), bool), cache, 0)
  points, num_points_B, _, cache, _ = jax.lax.while_loop(
    lambda carry: ~jnp.all(carry[2]), iterate, start
  )
  return Trajectory(points, num_points_B, chains.keep(cache, None, n))
