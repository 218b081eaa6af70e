"""Rejection recycling: earlier predictions that were rejected, tried again where they fit.

What a forward predicts behind the first wrong draft is rejected, yet runs of it are often right, if
at another place (Figure 4 of Jacobi Forcing). A pool keeps such predictions; those that continue
the last final token c become chains of their own, verified beside the plain one by the same
forward.

* `ngrams(size, n, candidates)`: what section 3.2 says: n-grams, found by their first token. The
  pool holds the newest `size` distinct ones; an n-gram that is predicted again becomes the newest,
  and the oldest are evicted.
* `points(size, width)`: what the authors' code does: whole sequences, scanned for c.

A chain is its n-gram and behind it the plain chain's own drafts, at their places. A pool lives as
long as its row, across blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from sbdjax.decode.base import Generation
from sbdjax.decode.jacobi_drafts import Moved, Plan, read
from sbdjax.errors import UsageError


class Pool(NamedTuple):
  """Where recycled drafts come from.

  Attributes:
    candidates: R, chains besides the plain one (static).
    init: (out) -> pool, any pytree with B as the leading axis.
    match: (pool, chain_BxT, num_B) -> (chains_BxRxT, valid_BxR): other chains behind the same c,
      equal to `chain` from column `num` on.
    push: (pool, plan, reach_B, moved) -> pool; plan and reach are those of the forward that moved.
  """

  candidates: int
  init: Callable[[Generation], Any]
  match: Callable[..., tuple[jax.Array, jax.Array]]
  push: Callable[..., Any]


def no_pool() -> Pool:
  """Nothing is recycled."""

  def match(pool, chain_BxT, num_B):
    del pool, num_B
    batch, columns = chain_BxT.shape
    return jnp.zeros((batch, 0, columns), jnp.int32), jnp.zeros((batch, 0), bool)

  return Pool(0, lambda out: (), match, lambda pool, *args: pool)


def _chains(chain_BxT, entries_BxRxW, at_BxR, num_BxR):
  """Chains [B, R, T] that have `num` tokens of their entry from `at` on, then the plain one's."""
  index_T = jnp.arange(chain_BxT.shape[1])
  source_BxRxT = at_BxR[..., None] + index_T
  source_BxRxT = jnp.minimum(source_BxRxT, entries_BxRxW.shape[2] - 1)
  recycled = jnp.take_along_axis(entries_BxRxW, source_BxRxT, axis=2)
  return jnp.where(index_T < num_BxR[..., None], recycled, chain_BxT[:, None])


def ngrams(size: int, n: int, candidates: int) -> Pool:
  """The newest `size` distinct n-grams of the points that forwards gave, found by first token.

  Args:
    size: n-grams a row keeps.
    n: their tokens, the one they are found by included.
    candidates: the newest so many that fit are tried. One that continues c just as the plain
      chain does is none.

  Raises:
    UsageError: n < 2, size < 1, or candidates outside 1..size.
  """
  if n < 2 or size < 1 or not 1 <= candidates <= size:
    raise UsageError(
      f"pool_size={size}, n_gram={n}, num_candidates={candidates}: n_gram must be at least 2, and "
      "num_candidates in 1..pool_size"
    )

  def init(out: Generation):
    return jnp.full((out.length_B.shape[0], size, n), -1, jnp.int32)

  def match(pool_BxSxN, chain_BxT, num_B):
    # Columns of the open block that an n-gram covers.
    covered_B = jnp.minimum(num_B, n)
    plain_BxN = read(chain_BxT, jnp.broadcast_to(jnp.arange(n), (chain_BxT.shape[0], n)))
    same_BxSxN = pool_BxSxN == plain_BxN[:, None]
    differs_BxS = jnp.any(~same_BxSxN & (jnp.arange(n) < covered_B[:, None, None]), axis=2)
    fits_BxS = same_BxSxN[:, :, 0] & differs_BxS
    first_BxR = jnp.argsort(~fits_BxS, axis=1, stable=True)[:, :candidates]
    entries = jnp.take_along_axis(pool_BxSxN, first_BxR[..., None], axis=1)
    num_BxR = jnp.broadcast_to(covered_B[:, None], first_BxR.shape)
    chains = _chains(chain_BxT, entries, jnp.zeros_like(first_BxR), num_BxR)
    return chains, jnp.take_along_axis(fits_BxS, first_BxR, axis=1)

  def push(pool_BxSxN, plan: Plan, reach_B, moved: Moved):
    del plan
    # The point of this forward: the end of the text, then every prediction. What was once predicted
    # for the text is in the pool; this adds what it has become.
    length_Bx1 = moved.before.length_B[:, None]
    text_BxN = read(moved.before.tokens_BxC, length_Bx1 - n + jnp.arange(n))
    point_BxL = jnp.concatenate([text_BxN, moved.chosen_BxT], axis=1)
    start_G = jnp.arange(point_BxL.shape[1] - n + 1)
    new_BxGxN = point_BxL[:, start_G[:, None] + jnp.arange(n)]
    position_BxG = length_Bx1 - n + start_G
    there_BxG = (position_BxG >= 0) & (position_BxG + n - 1 <= reach_B[:, None])
    new_BxGxN = jnp.where(there_BxG[..., None], new_BxGxN, -1)
    every = jnp.concatenate([new_BxGxN, pool_BxSxN], axis=1)
    # What is in the pool already is distinct: a repetition repeats a new one before it.
    equal_BxMxG = jnp.all(every[:, :, None] == new_BxGxN[:, None], axis=-1)
    again_BxM = jnp.any(jnp.tril(equal_BxMxG, -1), axis=2)
    gone_BxM = again_BxM | (every[..., 0] < 0)
    kept_BxS = jnp.argsort(gone_BxM, axis=1, stable=True)[:, :size]
    pool = jnp.take_along_axis(every, kept_BxS[..., None], axis=1)
    return jnp.where(jnp.take_along_axis(gone_BxM, kept_BxS, axis=1)[..., None], -1, pool)

  return Pool(candidates, init, match, push)


@flax.struct.dataclass
class Points:
  """Sequences of each row, newest first.

  Attributes:
    tokens_BxSxW: int32.
    length_BxS: int32, 0 for none.
    rejected_B: bool, the last forward rejected a draft.
  """

  tokens_BxSxW: jax.Array
  length_BxS: jax.Array
  rejected_B: jax.Array


def points(size: int, width: int, skip: int = -1) -> Pool:
  """What the authors' code recycles, to compare with.

  A forward that rejects a draft adds two sequences: all generated text with the new drafts of the
  open block and the old ones of the pseudo-active blocks; and the new drafts alone, if there are
  any. The next forward, if it is in the same block, tries every sequence but the newest from the
  first place on that holds c, provided that at least two do. So sizes 1 and 2 do nothing.

  Args:
    size: sequences a row keeps, the oldest are evicted.
    width: longest sequence; what is behind it is cut.
    skip: a token left out of sequences, the padding of spawned blocks (-1: none).

  Raises:
    UsageError: size < 2.
  """
  if size < 2:
    raise UsageError(
      f"a pool of {size} points tries none of them: it takes one more than num_candidates >= 1"
    )

  def init(out: Generation):
    batch = out.length_B.shape[0]
    return Points(
      jnp.zeros((batch, size, width), jnp.int32),
      jnp.zeros((batch, size), jnp.int32),
      jnp.zeros((batch,), bool),
    )

  def match(pool: Points, chain_BxT, num_B):
    tokens, length = pool.tokens_BxSxW[:, 1:], pool.length_BxS[:, 1:]
    is_c = (tokens == chain_BxT[:, 0, None, None]) & (jnp.arange(width) < length[..., None])
    fits_BxR = jnp.any(is_c, axis=2)
    fits_BxR &= ((jnp.sum(fits_BxR, axis=1) >= 2) & pool.rejected_B)[:, None]
    at_BxR = jnp.argmax(is_c, axis=2)
    return _chains(
      chain_BxT, tokens, at_BxR, jnp.minimum(num_B[:, None], length - at_BxR)
    ), fits_BxR

  def push(pool: Points, plan: Plan, reach_B, moved: Moved):
    before, after = moved.before, moved.after

    def sequence(start_B, stop_B):
      """Text, new drafts of the open block, old ones behind it: positions start..stop - 1."""
      position = start_B[:, None] + jnp.arange(width + 1)  # one more, in case that one is skipped
      new = read(moved.chosen_BxT, position - before.length_B[:, None])
      fresh = (position >= after.length_B[:, None]) & (position < plan.end_B[:, None] - 1)
      token = jnp.where(fresh, new, read(after.tokens_BxC, position))
      there = (position < stop_B[:, None]) & (token != skip)
      order = jnp.argsort(~there, axis=1, stable=True)[:, :width]
      length = jnp.minimum(jnp.sum(there, axis=1), width)
      return jnp.take_along_axis(token, order, axis=1), length

    whole = sequence(after.prompt_len_B - 1, reach_B)
    tail = sequence(after.length_B, plan.end_B - 1)
    rejected_B = after.length_B < plan.end_B
    tokens, length = pool.tokens_BxSxW, pool.length_BxS
    for (new, num_B), add_B in ((whole, rejected_B), (tail, rejected_B & (tail[1] > 0))):
      grown = jnp.concatenate([new[:, None], tokens[:, :-1]], axis=1)
      tokens = jnp.where(add_B[:, None, None], grown, tokens)
      longer = jnp.concatenate([num_B[:, None], length[:, :-1]], axis=1)
      length = jnp.where(add_B[:, None], longer, length)
    return Points(tokens, length, rejected_B)

  return Pool(size - 1, init, match, push)
