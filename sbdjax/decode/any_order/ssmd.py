"""Self-speculative sampling of masked diffusion: Algorithms 2 and 3 of arXiv:2510.03929.

The tokens of a row are generated in an order sigma, uniformly random but for what is given, which
comes first. One outer loop, which is one step here:

1. The trunk runs once on what is revealed, i tokens, and drafts the next W(i) tokens of sigma
   independently of each other.
2. The causal blocks run on the hidden states of that trunk pass and the drafts, which gives each
   draft's distribution knowing the ones before it. Drafts are accepted or resampled in order
   (`decode.verify`); at the first rejection the drafts behind it are kept, and the causal blocks
   alone run again. So until N tokens were resampled or the window is used up.

Drafts that nobody looked at are forgotten, and drawn again with the same noise by a later pass:
nothing depended on them. N = 1 and the full window is Algorithm 2. `sbdjax.likelihood.ssmd` has the
exact distribution of the output, and of the counts.
"""

from __future__ import annotations

from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp

from sbdjax.decode import base, fill, sampling, verify, windows
from sbdjax.decode.base import Generation, Limits, Sampler
from sbdjax.decode.windows import Window
from sbdjax.errors import UsageError
from sbdjax.lm import suppress
from sbdjax.sigma_lm import SigmaLM

# logits [..., V] -> log-probabilities of the same shape, -inf for tokens that are never drawn.
LogProbs = Callable[[jax.Array], jax.Array]


@flax.struct.dataclass
class SSMDState:
  """State of the sampler.

  Attributes:
    out: the row. `nfe` counts trunk passes, `causal_passes` those of the causal blocks, `drafted`
      the drafts that were looked at, `accepted` those that became text; the others were
      resampled. `query_tokens` are the trunk's.
    sigma_BxC: int32, the generation order; see `sbdjax.sigma_lm.SigmaLM`.
    revealed_B: int32, i, how many tokens of the row are known.
    end_B: int32, D, how many it has; also one past its last position.
    key_B: one key a row.
  """

  out: Generation
  sigma_BxC: jax.Array
  revealed_B: jax.Array
  end_B: jax.Array
  key_B: jax.Array


@flax.struct.dataclass
class _Inner:
  """Carry of the draft / verify loops of one outer loop.

  Attributes:
    tokens_BxC: int32, revealed tokens and drafts.
    at_B: int32, columns of the window that are decided.
    accepted_B, rejected_B, passes_B: int32, drafts and passes of this outer loop so far.
    open_B: bool, the row goes on.
  """

  tokens_BxC: jax.Array
  at_B: jax.Array
  accepted_B: jax.Array
  rejected_B: jax.Array
  passes_B: jax.Array
  open_B: jax.Array


def log_probs(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> LogProbs:
  """Log-probabilities of `sampling.make_choice` with these settings; temperature 0: the argmax.

  Applied to drafts and targets alike. Greedily a draft is then accepted if it is the target's
  argmax, and replaced by it if not.
  """
  sampling.make_choice(temperature, top_k, top_p)
  if temperature == 0:
    best = lambda logits: jnp.argmax(logits, axis=-1, keepdims=True)
    at_best = lambda logits: jnp.arange(logits.shape[-1]) == best(logits)
    return lambda logits: jnp.where(at_best(logits), 0.0, -jnp.inf)
  warp = sampling.warped(temperature, top_k, top_p)
  return lambda logits: jax.nn.log_softmax(warp(logits), axis=-1)


def generation_order(key: jax.Array, given_C: jax.Array, hidden_C: jax.Array) -> jax.Array:
  """sigma, int32 [C]: given positions in their own order, hidden ones in a random one, the rest.

  Args:
    key: of the row.
    given_C, hidden_C: bool, the positions whose tokens are known, and those to be generated.
  """
  number_C = jnp.arange(given_C.shape[0])
  chance_C = jax.vmap(lambda at: jax.random.uniform(jax.random.fold_in(key, at)))(number_C)
  rank_C = jnp.where(given_C, -1.0, jnp.where(hidden_C, chance_C, 2.0))
  return jnp.argsort(rank_C).astype(jnp.int32)


def full_forwards(out: Generation) -> jax.Array:
  """The paper's NFE, float32 [B]: passes in units of all blocks, (n_nc * n + n_c * m) / (n_nc + n_c).

  For n trunk passes (outer loops) and m passes of the causal blocks.
  """
  trunk, causal = out.blocks
  return (trunk * out.nfe_B + causal * out.causal_passes_B) / (trunk + causal)


def _at(x_BxC: jax.Array, index_BxW: jax.Array) -> jax.Array:
  """Rows of [B, C, ...] at the given indices."""
  index = index_BxW.reshape(*index_BxW.shape, *(1,) * (x_BxC.ndim - 2))
  return jnp.take_along_axis(x_BxC, index, axis=1, mode="clip")


def make_sampler(
  model: SigmaLM,
  limits: Limits,
  window: Window,
  n_inner: float = 1,
  to_log_probs: LogProbs | None = None,
  *,
  first_equal: bool = False,
) -> Sampler:
  """Algorithm 3; with `windows.full()` and `n_inner` = 1 Algorithm 2.

  Args:
    model: its `config.mask_id`, `trunk`, `target` and `logits` are used.
    window: how many tokens an outer loop may reveal; see `decode.windows`. D of a row counts the
      given tokens too.
    n_inner: N, draft / verify loops a trunk pass; `math.inf`: until the window is used up. May be
      traced.
    to_log_probs: see `log_probs`; None: softmax of the logits.
    first_equal: take the draft distribution for the target of the first hidden token, so that
      every outer loop accepts at least that draft. The paper does this for the first token of a
      sequence only, which the model does by itself; see `SigmaLM.target`.

  Raises:
    UsageError: `n_inner` below 1.
  """
  if isinstance(n_inner, (int, float)) and not n_inner >= 1:
    raise UsageError(f"n_inner={n_inner}: a trunk pass has at least one draft / verify loop")
  mask_id = model.config.mask_id
  normalise = log_probs() if to_log_probs is None else to_log_probs

  def distribution(params, hidden):
    return normalise(suppress(model.logits(params, hidden), mask_id))

  def init(params, prompt_BxP, prompt_len_B, key):
    del params
    out, end_B = fill.start(prompt_BxP, prompt_len_B, limits, mask_id)
    key_B = base.row_keys(key, prompt_BxP.shape[0])
    order_keys, token_keys = jnp.moveaxis(jax.vmap(jax.random.split)(key_B), 1, 0)
    hidden_BxC = fill.masked(out.tokens_BxC, end_B, mask_id)
    given_BxC = ~hidden_BxC & (jnp.arange(hidden_BxC.shape[1]) < end_B[:, None])
    blocks = (model.config.num_layers, model.head.num_layers)
    return SSMDState(
      out=out.replace(causal_passes_B=jnp.zeros_like(end_B), blocks=blocks),
      sigma_BxC=jax.vmap(generation_order)(order_keys, given_BxC, hidden_BxC),
      revealed_B=jnp.sum(given_BxC, axis=1, dtype=jnp.int32),
      end_B=end_B,
      key_B=token_keys,
    )

  def step(params, state: SSMDState):
    out, sigma_BxC, first_B = state.out, state.sigma_BxC, state.revealed_B
    capacity = sigma_BxC.shape[1]
    table = windows.table(window, capacity)
    rows_Bx1 = jnp.arange(sigma_BxC.shape[0])[:, None]
    hidden = model.trunk(params, out.tokens_BxC, length_B=state.end_B)

    # Everything below is in columns of the window: entry w stands for column i + w of sigma.
    size_B = jnp.asarray(table)[state.end_B, jnp.minimum(first_B, capacity - 1)]
    size_B = jnp.where(out.done_B, 0, size_B)
    index_W = jnp.arange(int(table.max()))
    inside_BxW = index_W < size_B[:, None]
    column_BxW = jnp.minimum(first_B[:, None] + index_W, capacity - 1)
    place_BxW = _at(sigma_BxC, column_BxW)
    keys_BxW = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)))(state.key_B, place_BxW)

    def draw(key, log_p):
      return jax.random.categorical(verify.draft_key(key), log_p, mode="high").astype(jnp.int32)

    log_draft = distribution(params, _at(hidden, place_BxW))
    draft_BxW = jax.vmap(jax.vmap(draw))(keys_BxW, log_draft)
    chance_BxW = jnp.take_along_axis(log_draft, draft_BxW[..., None], axis=2)[..., 0]
    to_BxW = jnp.where(inside_BxW, place_BxW, capacity)

    def verified(inner: _Inner) -> _Inner:
      """One pass of the causal blocks, and what it decides."""
      target = model.target(
        params, inner.tokens_BxC, hidden, sigma_BxC, equal_at_B=first_B if first_equal else None
      )
      log_target = distribution(params, _at(target, column_BxW))
      wanted_BxW = jnp.take_along_axis(log_target, draft_BxW[..., None], axis=2)[..., 0]
      accept_BxW = jax.vmap(jax.vmap(verify.accepts))(keys_BxW, chance_BxW, wanted_BxW)
      # The draft's token is still there in every column that is not decided.
      stop_B = verify.prefix_length((accept_BxW | (index_W < inner.at_B[:, None])) & inside_BxW)
      rejects_B = inner.open_B & (stop_B < size_B)

      # Whole rows of the vocabulary again, where something was rejected.
      at_Bx1 = jnp.minimum(stop_B, index_W[-1])[:, None]
      pick = lambda x: _at(x, at_Bx1)
      log_p = distribution(params, _at(target, pick(column_BxW)))[:, 0]
      log_q = distribution(params, _at(hidden, pick(place_BxW)))[:, 0]
      token_B = jax.vmap(verify.resample)(pick(keys_BxW)[:, 0], log_q, log_p)
      place_B = jnp.where(rejects_B, pick(place_BxW)[:, 0], capacity)
      tokens_BxC = inner.tokens_BxC.at[rows_Bx1[:, 0], place_B].set(token_B, mode="drop")

      now_B = jnp.where(inner.open_B, stop_B + rejects_B, inner.at_B)
      rejected_B = inner.rejected_B + rejects_B
      return _Inner(
        tokens_BxC=tokens_BxC,
        at_B=now_B,
        accepted_B=inner.accepted_B + jnp.where(inner.open_B, stop_B - inner.at_B, 0),
        rejected_B=rejected_B,
        passes_B=inner.passes_B + inner.open_B,
        open_B=rejects_B & (now_B < size_B) & (rejected_B < n_inner),
      )

    zero_B = jnp.zeros_like(first_B)
    inner = _Inner(
      tokens_BxC=out.tokens_BxC.at[rows_Bx1, to_BxW].set(draft_BxW, mode="drop"),
      at_B=zero_B,
      accepted_B=zero_B,
      rejected_B=zero_B,
      passes_B=zero_B,
      open_B=~out.done_B,
    )
    inner = jax.lax.while_loop(lambda inner: jnp.any(inner.open_B), verified, inner)

    decided_BxW = index_W < inner.at_B[:, None]
    reveal_BxC = jnp.zeros(sigma_BxC.shape, bool)
    to_BxW = jnp.where(decided_BxW, place_BxW, capacity)
    reveal_BxC = reveal_BxC.at[rows_Bx1, to_BxW].set(True, mode="drop")
    new = fill.reveal(out, inner.tokens_BxC, reveal_BxC)
    new = new.replace(
      query_tokens_B=out.query_tokens_B + state.end_B,
      drafted_B=out.drafted_B + inner.accepted_B + inner.rejected_B,
      accepted_B=out.accepted_B + inner.accepted_B,
      causal_passes_B=out.causal_passes_B + inner.passes_B,
    )
    new = fill.measured(new, state.end_B, limits, mask_id)
    return state.replace(
      out=base.keep_done(out.done_B, out, new),
      revealed_B=first_B + inner.at_B,
    )

  return Sampler(init, step, lambda state: state.out.done_B)
