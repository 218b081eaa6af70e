"""Pairs that a loss's attention computes, against dense masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax import masks
from sbdjax.losses import ntp, sbd, sdtt
from sbdjax.train import attention_work
from tests import models

L = 12


@pytest.mark.parametrize(
  "mask", [masks.Causal(), masks.Full(), masks.SBDTrain(block_size=4, max_block_size=4)]
)
def test_pairs_are_those_of_the_dense_mask(mask):
  bounds = [np.asarray(x)[0] for x in mask.intervals(L, L)]
  dense = sum(
    any(a[q] <= k < b[q] for a, b in zip(bounds[::2], bounds[1::2], strict=True))
    for q in range(L)
    for k in range(L)
  )
  assert attention_work.visible_pairs(mask, L) == dense


@pytest.mark.parametrize(
  ("loss", "pairs"),
  [
    (ntp.NTPLoss(), L * (L + 1) // 2),
    # Clean tokens see those before and themselves; a masked one its block and all before: 4 x 4 a
    # block, and the clean tokens before it.
    (sbd.SBDLoss(4, 4), L * (L + 1) // 2 + 3 * 16 + 4 * (0 + 4 + 8)),
  ],
)
def test_a_loss_says_what_it_computes(loss, pairs):
  c, found = flops_of(loss)
  products = 2 * (2 + 5)  # two in forward, five in backward, a multiplication and an addition each
  assert found == products * pairs * c.num_heads * c.head_dim * c.num_layers * 3


@pytest.mark.parametrize("loss", [sdtt.SDTTLoss(), sbd.SBDLoss(4, 4, ntp_teacher="frozen")])
def test_a_loss_with_a_teacher_is_called_with_one(loss):
  assert loss.distils and flops_of(loss, distils=True)[1] > 0


def flops_of(loss, **how):
  """The network's configuration, and the flops of its attention over three rows."""
  lm = models.lm_of(mask_id=12)
  row = dict(tokens=jnp.int32, positions=jnp.int32, segment_ids=jnp.int32, weights=jnp.float32)
  batch = {k: jax.ShapeDtypeStruct((3, L), t) for k, t in row.items()}
  batch["example_id"] = jax.ShapeDtypeStruct((3,), jnp.int32)
  return lm.config, attention_work.attention_flops(lm, loss, batch, **how)
