"""FlexAttention under our masks, on torch's CPU device; skipped where torch is not installed."""

import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax import masks
from sbdjax.bench import cases, correctness, flex
from sbdjax.bench.attention import AttentionShape

torch = pytest.importorskip("torch")
SHAPE = AttentionShape(batch=1, num_heads=2, num_kv_heads=1, head_dim=16)


@pytest.mark.parametrize("name", ["sbd", "jacobi"])
def test_same_attention_as_the_reference(name):
  from torch.nn.attention.flex_attention import flex_attention

  case = cases.TRAINING[name]
  queries = case.queries(64, 4)
  mask = case.mask(64, 4, jnp.int32(4))
  # On CPUs it has no backward, and refuses what might need one.
  *qkv, d_o = (x.detach() for x in flex.operands(SHAPE, queries, "cpu"))
  plan = flex.block_mask(mask, queries, queries, "cpu")
  found = flex.program("forward", flex_attention)(*qkv, d_o, plan)
  visible = np.asarray(masks.dense(mask, queries, queries))[0]
  expected = correctness.reference(*qkv, d_o, visible)[0]
  np.testing.assert_allclose(found, expected, atol=1e-5)
