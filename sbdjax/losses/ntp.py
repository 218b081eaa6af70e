"""Next-token prediction: the causal term every method here keeps or starts from."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from sbdjax import masks
from sbdjax.lm import LM
from sbdjax.losses.cross_entropy import CHUNK, check_chunk, token_nll


@dataclasses.dataclass(frozen=True)
class NTPLossConfig:
  """Settings of the next-token loss.

  Attributes:
    document_mask: attention stays inside each packed document.
    chunk: tokens whose logits exist at one time.
  """

  document_mask: bool = True
  chunk: int = CHUNK

  def __post_init__(self):
    check_chunk(self.chunk)


def shifted(batch: dict) -> tuple[jax.Array, jax.Array]:
  """Aligns targets: position i predicts token i + 1 of the same document.

  Returns:
    targets int32 [B, L] and weights float32 [B, L] (0 at the last position and across documents).
  """
  tokens, weights, ids = batch["tokens"], batch["weights"], batch["segment_ids"]
  same = (ids[:, 1:] == ids[:, :-1]).astype(weights.dtype)
  pad = ((0, 0), (0, 1))
  return jnp.pad(tokens[:, 1:], pad), jnp.pad(weights[:, 1:] * same, pad)


def documents(batch: dict, document_mask: bool) -> masks.Documents | None:
  """The document bounds of the batch, or None where packing is not to be masked."""
  return masks.document_bounds(batch["segment_ids"]) if document_mask else None


def make_loss(config: NTPLossConfig):
  """-sum log p(x_t | x_<t) over targets; weight: the sum of their weights."""

  def loss_fn(lm: LM, params, batch, key):
    del key
    hidden, _ = lm.apply(
      params,
      batch["tokens"],
      positions_BxT=batch["positions"],
      mask=masks.Causal(documents(batch, config.document_mask)),
    )
    targets, weights = shifted(batch)
    nll, correct = token_nll(lambda h: lm.logits(params, h), hidden, targets, chunk=config.chunk)
    loss, weight = jnp.sum(nll * weights), jnp.sum(weights)
    metrics = {"ntp_loss": (loss, weight), "ntp_accuracy": (jnp.sum(correct * weights), weight)}
    return loss, weight, metrics

  return loss_fn
