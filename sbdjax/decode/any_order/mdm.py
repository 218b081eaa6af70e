"""Masked diffusion sampling: every forward predicts all masks, and some become tokens.

Each sampler draws tokens first and decides apart from them which positions to reveal. The usual
joint draw over {stay masked} and the vocabulary multiplies each token's probability by a small
number, which single-precision noise turns into a lower temperature (Zheng et al. 2024,
arXiv:2409.02908).

Under the ancestral sampler each masked position is revealed in a step that depends on nothing but
chance: at noise level t it is revealed until s with probability (alpha_s - alpha_t) / (1 - alpha_t),
whatever the others do. So the step of every position is drawn beforehand, and steps that would
reveal nothing are not run at all: `nfe` is the best-case count of Self-Speculative Masked
Diffusions, section 5.1, and the clock agrees with it. Rows of a batch need not be at the same step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from sbdjax.corruption import MASK_SCHEDULES, MaskSchedule
from sbdjax.decode import base, fill
from sbdjax.decode.base import Generation, Limits, Sampler
from sbdjax.decode.sampling import Choose
from sbdjax.decode.select import Rule
from sbdjax.errors import UsageError
from sbdjax.lm import LM, suppress
from sbdjax.masks import Full
from sbdjax.nn.embedding import as_padding
from sbdjax.sigma_lm import SigmaLM

# (params, tokens int32 [B, C], end int32 [B]) -> logits float32 [B, C, V]; a row ends at `end`.
Predict = Callable[..., jax.Array]


class Unmask(NamedTuple):
  """Which masks a forward turns into tokens.

  Attributes:
    plan: (key, masked bool [C]) -> int32 [C], drawn once: positions with smaller numbers are to be
      revealed earlier, those with equal numbers together.
    select: (logits [B, C, V], plan [B, C], masked [B, C]) -> reveal [B, C], at least one a row that
      has masks.
  """

  plan: Callable[[jax.Array, jax.Array], jax.Array]
  select: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


@flax.struct.dataclass
class MDMState:
  """State of the sampler.

  Attributes:
    out: the row; `nfe` counts forwards, each of which revealed something.
    end_B: int32, one past the row.
    plan_BxC: int32, when positions are to be revealed; see `Unmask`.
    key_B: one key a row.
  """

  out: Generation
  end_B: jax.Array
  plan_BxC: jax.Array
  key_B: jax.Array


def _shares(key: jax.Array, count: int) -> jax.Array:
  """A number in [0, 1) for each position, the same however many there are."""
  return jax.vmap(lambda at: jax.random.uniform(jax.random.fold_in(key, at)))(jnp.arange(count))


def _earliest(logits_BxCxV, plan_BxC, masked_BxC):
  del logits_BxCxV
  last = jnp.iinfo(jnp.int32).max
  due_B = jnp.min(jnp.where(masked_BxC, plan_BxC, last), axis=1, keepdims=True)
  return masked_BxC & (plan_BxC == due_B)


def ancestral(num_steps, schedule: MaskSchedule = MASK_SCHEDULES["linear"]) -> Unmask:
  """The reverse process on a grid of `num_steps` equal steps of time, from 1 to 0; may be traced.

  Networks are not told the time, so the cosine schedule on this grid is also the linear one on the
  cosine grid of MD4.

  Positions revealed in one step are drawn independently of each other. The last step reveals all
  that is left, so no mask remains to be filled in some other way.
  """
  if isinstance(num_steps, int) and num_steps < 1:
    raise UsageError(f"steps={num_steps}: sampling takes at least one step")

  def plan(key, masked_C):
    # A position is revealed where the share of masks falls below its own number.
    time_C = schedule.time(1.0 - _shares(key, masked_C.shape[0]))
    return jnp.minimum(jnp.floor((1.0 - time_C) * num_steps), num_steps - 1).astype(jnp.int32)

  return Unmask(plan, _earliest)


def first_hitting(tokens_per_step=1) -> Unmask:
  """The limit of infinitely many steps: `tokens_per_step` = 1 token a forward, in random order.

  Masks change one at a time and, as no two are alike in law, in uniformly random order; the times
  at which they do matter only to networks that are told the time (Zheng et al. 2024, section 3).
  With more tokens a step, the next so many of that order are drawn from one forward: a static
  number of tokens a step, in random order. May be traced.
  """
  if isinstance(tokens_per_step, int) and tokens_per_step < 1:
    raise UsageError(f"tokens_per_step={tokens_per_step} must be at least 1")

  def plan(key, masked_C):
    time_C = jnp.where(masked_C, _shares(key, masked_C.shape[0]), 2.0)
    rank_C = jnp.argsort(jnp.argsort(time_C)).astype(jnp.int32)
    return rank_C // tokens_per_step

  return Unmask(plan, _earliest)


def by_rule(rule: Rule) -> Unmask:
  """As a reveal rule says; `select.top_k(n, score)` is the static schedule by confidence."""
  plan = lambda key, masked_C: jnp.zeros(masked_C.shape, jnp.int32)
  return Unmask(plan, lambda logits, plan_BxC, masked_BxC: rule(logits, masked_BxC))


def of_lm(lm: LM) -> Predict:
  """The predictions of `lm` with every position seeing every other.

  Raises:
    UsageError: it has no mask token.
  """
  if lm.config.mask_id is None:
    raise UsageError("this checkpoint has no mask token: it cannot be decoded by masked diffusion")

  def predict(params, tokens_BxC, end_B):
    tokens_BxC = as_padding(tokens_BxC, end_B, lm.config.pad_id)
    positions_BxC = jnp.broadcast_to(jnp.arange(tokens_BxC.shape[1]), tokens_BxC.shape)
    hidden, _ = lm.apply(params, tokens_BxC, positions_BxT=positions_BxC, mask=Full(end_B))
    return lm.logits(params, hidden)

  return predict


def of_sigma(model: SigmaLM) -> Predict:
  """The drafts of a self-speculative model: its trunk alone, decoded as masked diffusion."""

  def predict(params, tokens_BxC, end_B):
    return model.logits(params, model.trunk(params, tokens_BxC, length_B=end_B))

  return predict


def make_sampler(
  predict: Predict, mask_id: int, limits: Limits, choose: Choose, unmask: Unmask
) -> Sampler:
  """A sampler that reveals what `unmask` says, a forward a step.

  The token of a position is chosen with the row's key folded with the position, in the forward
  that reveals it.
  """

  def init(params, prompt_BxP, prompt_len_B, key):
    del params
    out, end_B = fill.start(prompt_BxP, prompt_len_B, limits, mask_id)
    key_B = base.row_keys(key, prompt_BxP.shape[0])
    plan_keys, token_keys = jnp.moveaxis(jax.vmap(jax.random.split)(key_B), 1, 0)
    masked_BxC = fill.masked(out.tokens_BxC, end_B, mask_id)
    return MDMState(out, end_B, jax.vmap(unmask.plan)(plan_keys, masked_BxC), token_keys)

  def step(params, state: MDMState):
    out = state.out
    masked_BxC = fill.masked(out.tokens_BxC, state.end_B, mask_id)
    logits = suppress(predict(params, out.tokens_BxC, state.end_B), mask_id)
    reveal_BxC = unmask.select(logits, state.plan_BxC, masked_BxC)
    at_positions = jax.vmap(jax.random.fold_in, (None, 0))
    keys_BxC = jax.vmap(at_positions, (0, None))(state.key_B, jnp.arange(masked_BxC.shape[1]))
    tokens_BxC = jax.vmap(jax.vmap(choose))(keys_BxC, logits)
    new = fill.reveal(out, tokens_BxC, reveal_BxC)
    new = new.replace(query_tokens_B=out.query_tokens_B + state.end_B)
    new = fill.measured(new, state.end_B, limits, mask_id)
    return state.replace(out=base.keep_done(out.done_B, out, new))

  return Sampler(init, step, lambda state: state.out.done_B)
