"""Verify rules: how many drafted tokens the target model accepts, and which token follows them.

A target distribution is known after every prefix of a chain of drafts; a rule turns that into the
number of accepted drafts and one more token, which is the target's own:

    verify(keys_Bx(M+1), draft_BxM, count_B, draft_logits_BxMxV, target_logits_Bx(M+1)xV) -> Verdict

Target row j is the distribution of draft j given drafts before it; row `count` that of the token
behind all of them. `keys[b, j]` belongs to the *position* of draft j, so that whatever noise a
rule uses is a function of (row, position) alone.

* `exact_match(choose)` is the coupling by common noise: the target chooses with the noise that
  autoregressive decoding would have used at that position, and a draft is accepted if it is that
  very token. Output is bit for bit the autoregressive one under the same key, greedy or drawn;
  drafts chosen with the same noise agree as often as any monotone coupling allows.
* `accept_or_resample(...)` is speculative sampling (Leviathan et al. 2023, Algorithm 1; Chen et
  al. 2023): the output has the target's distribution, though it is another draw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from sbdjax.decode.base import Generation, Limits
from sbdjax.decode.sampling import Choose


class Verdict(NamedTuple):
  """Outcome of a verification.

  Attributes:
    n_accepted_B: int32, accepted drafts (a prefix of the chain).
    token_B: int32, the token behind them.
    chosen_BxM1: int32 [B, M + 1], what the target would put at each place were all drafts before
      it accepted; `token` is its entry at `n_accepted`.
  """

  n_accepted_B: jax.Array
  token_B: jax.Array
  chosen_BxM1: jax.Array


class VerifyRule(NamedTuple):
  """A way to verify drafts.

  Attributes:
    verify: see the module; its `draft_logits` are None where `common_noise` is true.
    common_noise: drafts must be chosen with the key of their position, the target's own. If
      false: with its `draft_key`, and `verify` needs the logits they were drawn from.
  """

  verify: Callable[..., Verdict]
  common_noise: bool


def prefix_length(ok_BxM: jax.Array) -> jax.Array:
  """int32 [B]: how many leading entries are true."""
  return jnp.sum(jnp.cumprod(ok_BxM.astype(jnp.int32), axis=1), axis=1)


def _verdict(accept_BxM, count_B, chosen_BxM1) -> Verdict:
  in_chain = jnp.arange(accept_BxM.shape[1]) < count_B[:, None]
  n_B = prefix_length(accept_BxM & in_chain)
  token_B = jnp.take_along_axis(chosen_BxM1, n_B[:, None], axis=1)[:, 0]
  return Verdict(n_B, token_B, chosen_BxM1)


def exact_match(choose: Choose) -> VerifyRule:
  """Accepts drafts equal to what `choose` takes from the target with that position's noise."""

  def rule(keys_BxM1, draft_BxM, count_B, draft_logits_BxMxV, target_logits_BxM1xV):
    del draft_logits_BxMxV
    chosen = jax.vmap(jax.vmap(choose))(keys_BxM1, target_logits_BxM1xV)
    return _verdict(draft_BxM == chosen[:, :-1], count_B, chosen)

  return VerifyRule(rule, common_noise=True)


def _streams(key: jax.Array) -> jax.Array:
  """A position's keys for acceptance, for the resampled token, and for its draft: [3]."""
  return jax.random.split(key, 3)


def draft_key(key: jax.Array) -> jax.Array:
  """The key of a position's draft under `accept_or_resample`, independent of the rule's own.

  A place may be drafted again with the same noise: had anybody looked at the first draft, the
  place would have its token.
  """
  return _streams(key)[2]


def residual_log_probs(log_q: jax.Array, log_p: jax.Array) -> jax.Array:
  """log of max(0, p - q), not normalised, [..., V]; log p where p = q leaves no residual at all.

  p and q are then the same distribution up to rounding, a rejection has (numerically) probability
  0, and drawing from p is what is right.
  """
  # log(p - q) = log p + log(1 - q / p), exact where p and q are both tiny.
  positive = (log_p > log_q) & (log_p > -jnp.inf)
  gap = jnp.where(positive, log_q - log_p, -1.0)
  residual = jnp.where(positive, log_p + jnp.log(-jnp.expm1(gap)), -jnp.inf)
  return jnp.where(jnp.any(positive, axis=-1, keepdims=True), residual, log_p)


def accepts(key: jax.Array, log_q: jax.Array, log_p: jax.Array) -> jax.Array:
  """True with probability min(1, p / q): whether a draft drawn from q is a token of p.

  Args:
    key: of the draft's position.
    log_q, log_p: log-probabilities [] of the drafted token, in float32 or better.
  """
  return jnp.log(jax.random.uniform(_streams(key)[0])) < log_p - log_q


def resample(key: jax.Array, log_q: jax.Array, log_p: jax.Array) -> jax.Array:
  """The token int32 [] in place of a rejected draft, given all log-probabilities [V]."""
  residual = residual_log_probs(log_q, log_p)
  return jax.random.categorical(_streams(key)[1], residual, mode="high").astype(jnp.int32)


def accept_or_resample(log_probs: Callable[[jax.Array], jax.Array]) -> VerifyRule:
  """Accepts draft x with probability min(1, p(x) / q(x)), else draws from max(0, p - q).

  Args:
    log_probs: logits [..., V] -> log-probabilities tokens are drawn with (temperature, top-k and
      top-p applied; see `sampling.warped`). The drafts must have been drawn from `log_probs` of
      the draft logits, with `draft_key` of the keys given to the rule.
  """

  def rule(keys_BxM1, draft_BxM, count_B, draft_logits_BxMxV, target_logits_BxM1xV):
    log_q, log_p = log_probs(draft_logits_BxMxV), log_probs(target_logits_BxM1xV)
    # Behind the chain there is no draft to reject: the residual of "no draft" is p itself.
    in_chain = jnp.arange(log_q.shape[1]) < count_B[:, None]
    log_q = jnp.where(in_chain[..., None], log_q, -jnp.inf)
    log_q = jnp.concatenate([log_q, jnp.full_like(log_p[:, :1], -jnp.inf)], axis=1)

    def at_draft(log_x_BxM1xV):
      return jnp.take_along_axis(log_x_BxM1xV[:, :-1], draft_BxM[..., None], axis=-1)[..., 0]

    rowwise = lambda f: jax.vmap(jax.vmap(f))
    accept = rowwise(accepts)(keys_BxM1[:, :-1], at_draft(log_q), at_draft(log_p))
    chosen = rowwise(resample)(keys_BxM1, log_q, log_p)
    return _verdict(accept, count_B, chosen)

  return VerifyRule(rule, common_noise=False)


def append(
  out: Generation, tokens_BxT: jax.Array, added_B: jax.Array, limits: Limits
) -> Generation:
  """One forward's outcome: the first `added_B` >= 1 of `tokens_BxT` follow the text of each row.

  Tokens behind the first EOS or beyond the row's limit are dropped, and the row is then done. The
  caller keeps finished rows as they were.
  """
  rows_Bx1 = jnp.arange(added_B.shape[0])[:, None]
  index_T = jnp.arange(tokens_BxT.shape[1])
  room_B = limits.of_rows(added_B.shape[0]) - (out.length_B - out.prompt_len_B)
  added_B = jnp.minimum(added_B, room_B)
  eos_BxT = limits.is_eos(tokens_BxT) & (index_T < added_B[:, None])
  eos_B = jnp.any(eos_BxT, axis=1)
  added_B = jnp.where(eos_B, jnp.argmax(eos_BxT, axis=1) + 1, added_B)
  position_BxT = out.length_B[:, None] + index_T
  position_BxT = jnp.where(index_T < added_B[:, None], position_BxT, out.tokens_BxC.shape[1])
  return out.replace(
    tokens_BxC=out.tokens_BxC.at[rows_Bx1, position_BxT].set(tokens_BxT, mode="drop"),
    reveal_step_BxC=out.reveal_step_BxC.at[rows_Bx1, position_BxT].set(
      out.nfe_B[:, None], mode="drop"
    ),
    length_B=out.length_B + added_B,
    nfe_B=out.nfe_B + 1,
    done_B=eos_B | (added_B >= room_B),
    eos_B=eos_B,
  )
