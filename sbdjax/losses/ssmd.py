"""The loss of self-speculative masked diffusion (Campbell et al. 2025, arXiv:2510.03929, eq. 9).

    E_{sigma, n} (D / n) sum_{hidden d} [ -log p_nc(x_d | revealed) - log p_c(x_d | x_sigma(<d)) ]

The first term is the masked-diffusion bound of the drafts, the second trains the targets: both are
read off one trunk pass and one causal pass, which is fed the true tokens. n = D - i is how many of
the D tokens are hidden; see `losses.mdm` for its distribution and the weights. A row is one text.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from sbdjax.corruption import Order
from sbdjax.losses.cross_entropy import CHUNK, check_chunk, token_nll
from sbdjax.losses.mdm import check_noise, draw_order, row_weights, text_length
from sbdjax.sigma_lm import SigmaLM, in_order


@dataclasses.dataclass(frozen=True)
class SSMDLossConfig:
  """Settings of the self-speculative loss.

  Attributes:
    schedule: how many tokens are hidden how often: "linear", or "cosine" (the paper's on text).
    weighting: of a row's hidden tokens: "inverse_count" (equation 9 as printed) or "bound", which
      differ with the cosine schedule alone.
    first_equal: the target of the first hidden place is its draft, for samplers that take it so.
    chunk: tokens whose logits exist at one time.
  """

  schedule: str = "linear"
  weighting: str = "inverse_count"
  first_equal: bool = False
  chunk: int = CHUNK

  def __post_init__(self):
    check_noise(self.schedule, self.weighting)
    check_chunk(self.chunk)


def make_loss(config: SSMDLossConfig):
  """Equation 9 as a loss function; `weight` is the weight of all targets.

  Metrics, in nats a target: draft_loss and target_loss, the two terms (their sum is the loss);
  draft_nelbo and target_nelbo, the same with the weights of the bound. A hidden token:
  draft_accuracy and target_accuracy.
  """

  def loss_fn(lm: SigmaLM, params, batch, key):
    return loss_on(lm, params, batch, draw_order(batch, key, config.schedule))

  def loss_on(lm: SigmaLM, params, batch, order: Order):
    """The loss of a given order."""
    tokens, rows = batch["tokens"], len(batch["tokens"])
    noisy = jnp.where(order.hidden_places(), lm.config.mask_id, tokens)
    hidden = lm.trunk(params, noisy, length_B=text_length(batch))
    equal_at = order.revealed if config.first_equal else None
    target = lm.target(params, tokens, hidden, order.sigma, equal_at_B=equal_at)
    in_sigma = in_order(tokens, order.sigma)
    nll, correct = token_nll(
      lambda h: lm.logits(params, h),
      jnp.concatenate([in_order(hidden, order.sigma), target]),
      jnp.concatenate([in_sigma, in_sigma]),
      chunk=config.chunk,
    )
    weights = in_order(batch["weights"], order.sigma) * order.hidden_columns()
    total, count = jnp.sum(batch["weights"]), jnp.sum(weights)
    factor_B = row_weights(config.weighting, config.schedule, order)
    bound_B = row_weights("bound", config.schedule, order)
    loss, metrics = 0.0, {}
    for name, rows_of in (("draft", slice(rows)), ("target", slice(rows, None))):
      nll_B = jnp.sum(nll[rows_of] * weights, axis=1)
      term = jnp.sum(nll_B * factor_B)
      loss += term
      metrics |= {
        f"{name}_loss": (term, total),
        f"{name}_nelbo": (jnp.sum(nll_B * bound_B), total),
        f"{name}_accuracy": (jnp.sum(correct[rows_of] * weights), count),
      }
    return loss, total, metrics

  loss_fn.on = loss_on
  return loss_fn
