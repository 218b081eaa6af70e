"""One forward over [clean; noisy]: a text and its noisy version, side by side in one sequence."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from sbdjax.lm import LM
from sbdjax.losses.base import Batch
from sbdjax.masks import Mask


def run_halves(lm: LM, params: Any, batch: Batch, noisy_BxL: jax.Array, mask: Mask) -> jax.Array:
  """Hidden states [B, 2L, D] of the clean tokens, then of the noisy ones at the same positions.

  Args:
    lm: the model.
    params: of the model.
    batch: see `sbdjax.losses`.
    noisy_BxL: int32, the tokens with some of them masked.
    mask: over the 2L tokens, like `masks.SBDTrain`.
  """
  hidden, _ = lm.apply(
    params,
    jnp.concatenate([batch["tokens"], noisy_BxL], axis=1),
    positions_BxT=jnp.tile(batch["positions"], (1, 2)),
    mask=mask,
  )
  return hidden
