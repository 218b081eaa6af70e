"""The Set Block Decoding loss (SBD, equations 13 and 14, Algorithm 1).

    L(x, x-hat) = - sum_{t=2..L} log p(x_t | x_<t ;)
                  - sum_{t in T} sum_{i<k} 1[x-hat_{t+i} = m] log p(x_{t+i} | x_<t ; x-hat_{t..t+k-1})

with T = {1 + l k : l = 0 .. floor(L / k) - 1}: a last, partial block carries no masked term. One
forward over [clean; masked] (2L tokens) under `masks.SBDTrain` gives both terms.

Of a model with an adapter (`nn.adapter`) only the second term is left: the first is the base's, which
nothing that is trained moves. It is neither computed nor reported, and the clean half is run without
a backward pass.

The paper's Figure 7 is not followed where it contradicts this: its labels are inverted (it drops
the *masked* positions), its block length can be 0, and it passes L where Figure 9 expects 2L.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from sbdjax import corruption, masks
from sbdjax.errors import UsageError
from sbdjax.lm import LM
from sbdjax.losses.base import EXAMPLE_ID, Batch, Loss, Metrics, check_batch
from sbdjax.losses.chunks import CHUNK, check_chunk
from sbdjax.losses.cross_entropy import token_nll
from sbdjax.losses.halves import run_gated, run_halves
from sbdjax.losses.ntp import documents, shifted
from sbdjax.nn.config import need_mask_token

# Weight of a masked token's term, from (eta_B, number of masked targets_B, number of targets_B).
# All three have the batch's NTP target count as their one denominator.
NORMALISATIONS = {
  # As printed in equation 14: every masked token counts 1.
  "sum": lambda eta_B, masked_B, total_B: jnp.ones_like(eta_B),
  # The masked tokens of a sequence together weigh what its targets weigh.
  "mean": lambda eta_B, masked_B, total_B: total_B / jnp.maximum(masked_B, 1.0),
  # The weight of the masked-diffusion likelihood bound (its schedule alpha = 1 - eta).
  "inverse_eta": lambda eta_B, masked_B, total_B: 1.0 / eta_B,
}


@dataclasses.dataclass(frozen=True)
class SBDLoss(Loss):
  """Equation 14; `weight` is the number of next-token targets.

  Attributes:
    block_size_min: smallest k. Equal to `block_size_max`: a fixed block size.
    block_size_max: largest k; k is drawn uniformly from [min, max] each step (paper: [2, 16]).
    ntp_weight: factor of the next-token term. 0: the term is logged and carries no gradient.
    masked_weight: factor of the masked term.
    normalisation: "sum" (as printed), "mean" or "inverse_eta"; see NORMALISATIONS.
    full_mask_fraction: share of sequences that are masked from end to end, so that every block is
      predicted from its past alone; what `decode.sbd_verified` asks of the model. 0: the paper's.
    document_mask: attention stays inside each packed document.
    chunk: tokens whose logits exist at one time.
  """

  trains_adapter: ClassVar[bool] = True

  block_size_min: int = 2
  block_size_max: int = 16
  ntp_weight: float = 1.0
  masked_weight: float = 1.0
  normalisation: str = "sum"
  full_mask_fraction: float = 0.0
  document_mask: bool = True
  chunk: int = CHUNK

  def __post_init__(self) -> None:
    if not 1 <= self.block_size_min <= self.block_size_max:
      raise UsageError(
        "loss.block_size_min and block_size_max need 1 <= min <= max, got "
        f"{self.block_size_min} and {self.block_size_max}"
      )
    if self.normalisation not in NORMALISATIONS:
      raise UsageError(
        f"loss.normalisation={self.normalisation!r}: choose one of {tuple(NORMALISATIONS)}"
      )
    if not 0 <= self.full_mask_fraction <= 1:
      raise UsageError(f"loss.full_mask_fraction={self.full_mask_fraction} must lie in [0, 1]")
    if self.ntp_weight < 0 or self.masked_weight < 0:
      raise UsageError("loss.ntp_weight and loss.masked_weight must not be negative")
    check_chunk(self.chunk)

  def __call__(
    self, lm: LM, params: Any, batch: Batch, key: jax.Array
  ) -> tuple[jax.Array, jax.Array, Metrics]:
    """The loss of a batch; see `Loss`."""
    check_batch(batch, example_id=EXAMPLE_ID)
    mask_id = need_mask_token(lm.config, "the SBD loss needs one: set model.mask_id")
    key_size, key_noise = jax.random.split(key)
    # Drawn from the step's key alone: every device and example of a step shares one k.
    block_size = jax.random.randint(
      key_size, (), self.block_size_min, self.block_size_max + 1, jnp.int32
    )
    keys_B = corruption.example_keys(key_noise, batch["example_id"])
    noise = corruption.mask_at_random(keys_B, batch["tokens"], mask_id, self.full_mask_fraction)
    return loss_on(self, lm, params, batch, *noise, block_size)


def loss_on(
  settings: SBDLoss,
  lm: LM,
  params: Any,
  batch: Batch,
  noisy_BxL: jax.Array,
  masked_BxL: jax.Array,
  eta_B: jax.Array,
  block_size: jax.Array | int,
) -> tuple[jax.Array, jax.Array, Metrics]:
  """The loss of given noise; what a reference implementation is compared with.

  Args:
    settings: of the loss.
    lm, params, batch: as of `Loss`.
    noisy_BxL: int32, the tokens with some of them masked.
    masked_BxL: bool, which.
    eta_B: float32, the probability a row was masked with.
    block_size: k, at most `settings.block_size_max`; may be traced.

  Returns:
    As `Loss`.
  """
  tokens, length = batch["tokens"], batch["tokens"].shape[1]
  mask = masks.SBDTrain(
    block_size=block_size,
    documents=documents(batch, settings.document_mask),
    max_block_size=settings.block_size_max,
  )
  gated = lm.config.adapter is not None
  hidden = (run_gated if gated else run_halves)(lm, params, batch, noisy_BxL, mask)
  next_tokens, ntp_weights = shifted(batch)
  in_whole_block_L = jnp.arange(length) < (length // block_size) * block_size
  masked_weights = batch["weights"] * (masked_BxL & in_whole_block_L)
  first = length if gated else 0
  nll, correct = token_nll(
    lambda h: lm.logits(params, h),
    hidden[:, first:],
    jnp.concatenate([next_tokens, tokens], axis=1)[:, first:],
    jnp.concatenate([ntp_weights, masked_weights], axis=1)[:, first:],
    chunk=settings.chunk,
  )
  weight = jnp.sum(ntp_weights)
  masked_nll_B = jnp.sum(nll[:, -length:] * masked_weights, axis=1)
  normalise = NORMALISATIONS[settings.normalisation]
  factor_B = normalise(eta_B, jnp.sum(masked_weights, axis=1), jnp.sum(ntp_weights, axis=1))
  masked_count = jnp.sum(masked_weights)
  loss = settings.masked_weight * jnp.sum(masked_nll_B * factor_B)
  metrics = {
    "masked_loss": (jnp.sum(masked_nll_B), masked_count),
    "masked_accuracy": (jnp.sum(correct[:, -length:] * masked_weights), masked_count),
  }
  if gated:
    return loss, weight, metrics
  ntp_sum = jnp.sum(nll[:, :length] * ntp_weights)
  metrics = {
    "ntp_loss": (ntp_sum, weight),
    "ntp_accuracy": (jnp.sum(correct[:, :length] * ntp_weights), weight),
  } | metrics
  if settings.ntp_weight == 0.0:
    ntp_sum = jax.lax.stop_gradient(ntp_sum)
  return settings.ntp_weight * ntp_sum + loss, weight, metrics
