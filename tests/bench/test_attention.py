"""Attention benchmarks: what is counted, and that a wrong result is seen."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax import masks
from sbdjax.bench import attention, cases, correctness, decode_attention
from sbdjax.bench.attention import AttentionShape
from sbdjax.bench.rivals import RIVALS, Rival, present
from tests.jit import quick_jit

SHAPE = AttentionShape(batch=1, num_heads=2, num_kv_heads=1, head_dim=4)


def test_pairs_are_those_of_the_dense_mask():
  case = cases.TRAINING["jacobi_clean_window"]  # four intervals a query
  queries = case.queries(24, 4)
  mask = case.mask(24, 4, jnp.int32(4))
  expected = int(np.asarray(masks.dense(mask, queries, queries)).sum())
  assert cases.visible_pairs(mask, queries, queries) == expected


def test_flops_of_a_single_pair():
  # Two products of Dh multiplications and additions in forward, five more in backward.
  assert attention.flops(SHAPE, 1, "forward") == 2 * 2 * 2 * 4
  assert attention.flops(SHAPE, 3, "forward+backward") == 3 * 7 * 2 * 2 * 4


def test_reference_is_softmax_attention_with_its_gradients():
  shape = dataclasses.replace(SHAPE, batch=2)
  q, k, v, d_o = attention.operands(shape, 6, time_major=False)
  visible = np.tril(np.ones((6, 6), bool))
  visible[2] = False  # a query that sees nothing

  def dense(q, k, v):
    k, v = (jnp.repeat(x, 2, axis=1) for x in (k, v))
    scores = jnp.where(visible, jnp.einsum("bhtd,bhsd->bhts", q, k) / 2, -1e30)
    probs = jnp.where(visible.any(1)[:, None], jax.nn.softmax(scores), 0.0)
    return jnp.einsum("bhts,bhsd->bhtd", probs, v)

  def both(q, k, v, d_o):
    o, pull = jax.vjp(dense, q, k, v)
    return o, *pull(d_o)

  found = correctness.reference(q, k, v, d_o, visible)
  for x, y in zip(found, quick_jit(both)(q, k, v, d_o), strict=True):
    np.testing.assert_allclose(x, y, atol=1e-5)
  assert not found[0][:, :, 2].any()


def test_a_wrong_backend_is_seen(monkeypatch):
  check = lambda: correctness.check_training("xla_dense", "causal", SHAPE, 8, 2)
  right = check()
  assert [row.array for row in right] == ["o", "dq", "dk", "dv"] and all(row.ok for row in right)
  assert all(0 < row.difference < 1e-5 < row.scale for row in right)
  ours = RIVALS["xla_dense"]
  wrong = lambda mask, t, s: ours.plan(mask, t, s).at[..., 5, 3].set(False)
  monkeypatch.setitem(RIVALS, "xla_dense", ours._replace(plan=wrong))
  assert not any(row.ok for row in check())


def test_an_error_is_a_result():
  def attend(q, k, v, plan):
    raise NotImplementedError("no such kernel\nwith details")

  rival = Rival(lambda *mask: None, attend)
  row = attention.measure("broken", rival, "sbd", "forward", SHAPE, 8, 2, repeats=3, lasting=0.0)
  assert row.error == "NotImplementedError: no such kernel" and row.seconds is None
  assert row.queries == 16


def test_a_row_counts_visible_pairs_alone():
  plan = lambda mask, t, s: None
  rival = Rival(plan, lambda q, k, v, plan: q + 1)
  row = attention.measure("fast", rival, "causal", "forward", SHAPE, 4, 2, repeats=3, lasting=0.0)
  pairs = 8 * 9 // 2
  assert row.tflops == pytest.approx(attention.flops(SHAPE, pairs, "forward") / row.seconds / 1e12)
  assert 0 < row.low <= row.seconds <= row.high and not row.error


def test_present():
  there, absent = present("cpu")
  assert {"xla", "xla_dense"} <= set(there) and absent["cudnn"] == "not for cpu"
  assert set(there) | set(absent) == set(RIVALS)
  assert "pallas_gpu" in present("gpu")[0] and "pallas_tpu" in present("tpu")[0]
  assert RIVALS["cudnn"].knows("causal") and not RIVALS["cudnn"].knows("sbd")


def test_bytes_of_decoding():
  shape = dataclasses.replace(SHAPE, batch=3, dtype="bfloat16")
  # Keys and values of 10 + 2 tokens of one head, queries and results of 2 tokens of two heads.
  assert decode_attention.bytes_of(shape, 2, 10) == 3 * (2 * 12 + 2 * 2 * 2) * 4 * 2


@pytest.mark.long
def test_decoding_is_checked_row_by_row(monkeypatch):
  check = lambda: correctness.check_decoding("xla", SHAPE, 2, [8, 2, 3], 8)
  assert check().ok
  # Only what is checked is wrong, not the rule it is compared with.
  right = cases.window
  wrong = lambda length_B, k: right(length_B - jnp.array([0, 0, 1]), k)
  monkeypatch.setattr(decode_attention, "cases", types.SimpleNamespace(window=wrong))
  assert not check().ok


@pytest.mark.long
def test_decoding_is_timed():
  row = decode_attention.measure(
    "xla", SHAPE, 2, 8, copy=1e9, read_bytes=500, repeats=3, lasting=0.0
  )
  assert row.layers == -(-500 // row.bytes) > 1 and not row.error
  assert row.of_copy == pytest.approx(row.bytes / row.seconds / 1e9)


def test_copy():
  found = decode_attention.copy_bandwidth(1 << 12, 3)
  assert 0 < found.low <= found.median <= found.high
