"""Jacobi decoding: guess the next n tokens, and let one forward correct all of them at once.

Equation 3 of Jacobi Forcing (Hu et al. 2025; Song et al. 2021, Santilli et al. 2023): with x the
text and y the n tokens behind it,

    y_i^(j+1) = argmax p(y | y_<i^(j), x)    for i = 1..n, all in one causal forward,

until y stands still; that y is what autoregressive (AR) decoding puts out. A prediction is final as
soon as everything before it is, so a forward adds 1 + (leading drafts that were right) tokens, and
their keys enter the cache at once: the open block shrinks.

The text x ends with a final token c. A *chain* is c and the drafts y_1..y_n-1, and its n outputs
are the predictions of y_1..y_n (y_n is never an input). Drafts stand in `out.tokens_BxC` behind the
text. Where they stand and what becomes of them is a `Drafting`:

* `jacobi_drafts.blocks`: vanilla decoding, block after block, each to its fixed point;
* `jacobi_drafts.window`: always n predictions, the tail replenished in every forward;
* `jacobi_multiblock.multiblock`: Algorithm 1.

A `Pool` (`jacobi_recycling`) adds chains: continuations of c that earlier predictions held. All are
verified by the same forward, and the longest acceptance wins.

What is accepted is a rule of `decode.verify`, so temperature > 0 is exact too. Under `exact_match`
a draft is what the target chose with the noise of that very position; under `accept_or_resample` it
is the likeliest token, a point mass: accepted with probability p(draft), else the token is drawn
from the others. The paper and its code are greedy.

The authors' code counts the same forwards in another way: there a block begins with its first token
already known, from the last forward of the block before, so its y_1..y_n is our c, y_1..y_n-1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from sbdjax.cache import KVCache
from sbdjax.decode import base, sampling
from sbdjax.decode.ar import prefill
from sbdjax.decode.base import Generation, Limits, Sampler
from sbdjax.decode.chains import as_batch, make_chains
from sbdjax.decode.jacobi_drafts import Drafting, Moved, Plan, read
from sbdjax.decode.jacobi_recycling import Pool, no_pool
from sbdjax.decode.sampling import Choose
from sbdjax.decode.verify import VerifyRule, append, prefix_length
from sbdjax.errors import UsageError
from sbdjax.lm import LM


@flax.struct.dataclass
class JacobiState:
  """State of the sampler.

  Attributes:
    out: final tokens; drafts behind them.
    cache: committed: every final token but the last.
    key_B: one key a row; noise is keyed by (row, position).
    plan: where the drafts stand.
    pool: what may be recycled.
  """

  out: Generation
  cache: KVCache
  key_B: jax.Array
  plan: Plan
  pool: Any


def make_sampler(
  lm: LM,
  limits: Limits,
  rule: VerifyRule,
  drafting: Drafting,
  pool: Pool | None = None,
  mode: str = "batch",
) -> Sampler:
  """Decodes as AR does, several tokens a forward.

  Args:
    rule: `verify.exact_match(choose)` or `verify.accept_or_resample(...)`.
    drafting: `blocks`, `window` or `jacobi_multiblock.multiblock`.
    pool: recycled drafts (`jacobi_recycling`); None: none.
    mode: recycled drafts as rows of a "batch" or branches of a "tree".

  Raises:
    UsageError: an unknown mode, or recycling under a rule that draws for each chain anew.
  """
  pool = no_pool() if pool is None else pool
  columns, mask_id = drafting.columns, lm.config.mask_id
  chains = make_chains(lm, mode, 1 + pool.candidates, columns)
  if pool.candidates and not rule.common_noise:
    raise UsageError(
      "recycled drafts need the verify rule exact_match: of several chains that draw on their own "
      "the longest acceptance is not a fair draw"
    )

  def init(params, prompt_BxP, prompt_len_B, key):
    batch, width = prompt_BxP.shape
    text = width + limits.max_tokens
    # Drafts may stand beyond the limit, and so may those of the next blocks.
    out = base.start(prompt_BxP, prompt_len_B, text + 2 * columns, fill=mask_id or 0)
    cache = prefill(
      lm, params, out.tokens_BxC[:, :width], out.prompt_len_B - 1, text + chains.scratch
    )
    key_B = base.row_keys(key, batch)
    tokens, plan = drafting.start(key_B, out)
    out = out.replace(tokens_BxC=tokens, prefill_nfe_B=out.prefill_nfe_B + 1)
    return JacobiState(out, cache, key_B, plan, pool.init(out))

  def verify(keys_BxT, chains_BxRxT, count_B, logits_BxRxTxV):
    """The rule, for every chain; and what each predicts at each place."""
    draft = chains_BxRxT[..., 1:]
    log_q = None
    if not rule.common_noise:
      is_draft = jnp.arange(lm.config.vocab_size) == draft[..., None]
      log_q = jnp.where(is_draft, 0.0, -jnp.inf)  # a point mass
    axis = (None, 1, None, None if log_q is None else 1, 1)
    verdict = jax.vmap(rule.verify, axis, out_axes=1)(
      keys_BxT, draft, count_B, log_q, logits_BxRxTxV
    )
    if rule.common_noise:
      return verdict, verdict.chosen_BxM1
    # Drafts must know nothing of the noise they will be verified with.
    return verdict, jnp.argmax(logits_BxRxTxV, axis=-1).astype(jnp.int32)

  def step(params, state: JacobiState) -> JacobiState:
    out, plan = state.out, state.plan
    rows, index_T = jnp.arange(out.length_B.shape[0]), jnp.arange(columns)
    chain_BxT = read(out.tokens_BxC, out.length_B[:, None] - 1 + index_T)
    num_B = plan.end_B - out.length_B  # columns of the open block, c included
    more_BxRxT, valid_BxR = pool.match(state.pool, chain_BxT, num_B)
    chains_BxRxT = jnp.concatenate([chain_BxT[:, None], more_BxRxT], axis=1)
    logits, cache = chains.run(params, state.cache, chains_BxRxT)

    position_BxT = out.length_B[:, None] + index_T
    keys_BxT = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))(state.key_B, position_BxT)
    count_B = drafting.verified(plan) - out.length_B
    verdict, chosen_BxRxT = verify(keys_BxT, chains_BxRxT, count_B, logits)
    valid_BxR = jnp.pad(valid_BxR, ((0, 0), (1, 0)), constant_values=True)
    best_B = jnp.argmax(jnp.where(valid_BxR, verdict.n_accepted_B, -1), axis=1)  # plain on ties
    n_B, final_B = verdict.n_accepted_B[rows, best_B], verdict.token_B[rows, best_B]

    drafts_BxT = jnp.pad(chains_BxRxT[rows, best_B, 1:], ((0, 0), (0, 1)))
    accepted_BxT = jnp.where(index_T < n_B[:, None], drafts_BxT, final_B[:, None])
    after = append(out, accepted_BxT, n_B + 1, limits)
    width_B = drafting.reach(plan) - out.length_B + 1
    num_chains_B = jnp.sum(valid_BxR, axis=1)
    after = after.replace(
      query_tokens_B=out.query_tokens_B + width_B * num_chains_B,
      drafted_B=out.drafted_B + count_B * num_chains_B,
      accepted_B=out.accepted_B + n_B,
    )
    moved = Moved(out, after, chosen_BxRxT[rows, best_B], chosen_BxRxT[:, 0])
    tokens, new_plan = drafting.advance(state.key_B, plan, moved)
    new_pool = pool.push(state.pool, plan, drafting.reach(plan), moved)
    after = after.replace(tokens_BxC=tokens)

    added_B = jnp.where(out.done_B, 0, n_B + 1)
    cache = chains.keep(cache, best_B, added_B)
    old, new = (out, plan, state.pool), (after, new_plan, new_pool)
    out, plan, new_pool = base.keep_done(out.done_B, old, new)
    return JacobiState(out, cache, state.key_B, plan, new_pool)

  return Sampler(init, step, lambda state: state.out.done_B)


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
