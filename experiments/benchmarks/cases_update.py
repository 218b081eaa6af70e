"""What an update with the SBD loss costs: as cpu_losses.py, with the same flags.

python experiments/benchmarks/cases_update.py. "logits": logits of every token of [clean; noisy]
(before) or of those alone that count (after). "sbd over ntp": the next-token loss (before) beside
the SBD loss (after) on the same texts. Gradients without the optimizer, which is the same for all.
Models have random weights, and the shapes of stories260K, llama2.c's 15M, and a tenth of
SmolLM2-135M's layers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from cases_prepare import MODELS
from cpu_losses import Case, compiled, main

from sbdjax import chunks
from sbdjax.lm import make_lm
from sbdjax.losses import cross_entropy
from sbdjax.losses.base import Loss
from sbdjax.losses.ntp import NTPLoss
from sbdjax.losses.sbd import SBDLoss
from sbdjax.nn.transformer import TransformerConfig


def texts(vocab_size: int, batch: int, length: int) -> dict[str, jax.Array]:
  rng = np.random.default_rng(0)
  return {
    "tokens": jnp.asarray(rng.integers(1, vocab_size, (batch, length)), jnp.int32),
    "weights": jnp.ones((batch, length), jnp.float32),
    "positions": jnp.tile(jnp.arange(length, dtype=jnp.int32), (batch, 1)),
    "segment_ids": jnp.ones((batch, length), jnp.int32),
    "example_id": jnp.arange(batch, dtype=jnp.int32),
  }


def everywhere(fn: Callable, chunk: int, *arrays: jax.Array, needed_BxL: jax.Array | None = None):
  """`in_chunks` without leaving anything out."""
  del needed_BxL
  return chunks.in_chunks(fn, chunk, *arrays)


def case(
  name: str,
  model: str,
  batch: int,
  length: int,
  losses: tuple[Loss, Loss],
  ways: tuple[Callable, Callable],
  same: bool,
  layers: int = 0,
) -> Case:
  """Gradients of a loss in one way of taking logits, and of a loss in another."""
  sizes = MODELS[model] | ({"num_layers": layers} if layers else {})

  def make():
    lm = make_lm(TransformerConfig(mask_id=0, **sizes))
    params = jax.jit(lm.init)(jax.random.key(0))
    batch_of = texts(sizes["vocab_size"], batch, length)

    def gradients(loss, way):
      def run(params, batch):
        with mock.patch.object(cross_entropy, "in_chunks", way):
          mean = lambda params: (lambda x: x[0] / x[1])(loss(lm, params, batch, jax.random.key(1)))
          return jax.value_and_grad(mean)(params)

      return run

    sides = [gradients(*side) for side in zip(losses, ways, strict=True)]
    tolerance = {} if same else {"tolerance": None}
    return compiled(*sides, (params, batch_of), **tolerance)

  return Case(f"{name} {model} L={length} B={batch}", sizes | dict(batch=batch), make)


SIZES = (("260K", 16, 128, 0), ("15M", 8, 256, 0), ("15M", 2, 1024, 0), ("135M", 4, 256, 3))
CASES = [
  *(
    case("logits", *size[:3], (SBDLoss(),) * 2, (everywhere, chunks.in_chunks), True, size[3])
    for size in SIZES
  ),
  *(
    case("sbd over ntp", *size[:3], (NTPLoss(), SBDLoss()), (chunks.in_chunks,) * 2, False, size[3])
    for size in SIZES
  ),
]

if __name__ == "__main__":
  sys.exit(main(CASES))
