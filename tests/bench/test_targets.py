"""Targets against records of a run."""

import pytest

from sbdjax.bench import targets

GPU = {"stage": "attention", "provenance": {"device": "gpu: NVIDIA H200"}}


def attention(backend, seconds, work="forward", stage="attention", length=4096, error=""):
  return dict(
    stage=stage, case="sbd", backend=backend, work=work, length=length, seconds=seconds, error=error
  )


def judge(*records, device=GPU):
  return {v.name: v for v in targets.judge([device, *records])}


def test_nothing_measured_is_neither_passed_nor_missed():
  found = judge()
  assert {v.verdict for v in found.values()} == {"not measured"} and len(found) == len(
    targets.TARGETS
  )


@pytest.mark.parametrize("seconds, verdict", [(5.1, "pass"), (4.9, "miss"), (None, "not measured")])
def test_ratio_to_dense_attention_at_4k(seconds, verdict):
  far = attention("xla_dense", 100.0, length=8192)
  found = judge(attention("pallas_gpu", 1.0), attention("xla_dense", seconds), far)
  assert found["forward, x XLA dense, SBD L=4096"].verdict == verdict
  assert found["forward+backward, x XLA dense, SBD L=4096"].verdict == "not measured"


def test_flex_has_a_stage_of_its_own():
  found = judge(attention("pallas_gpu", 1.0), attention("flex", 0.95, stage="flex"))
  assert found["forward, x FlexAttention, SBD L=4096"].found == 0.95
  assert found["forward, x FlexAttention, SBD L=4096"].verdict == "pass"


def test_decoding_is_judged_by_its_slowest_window_over_long_caches():
  row = lambda k, context, batch, share: dict(
    stage="decode", backend="pallas_gpu", block_size=k, context=context, batch=batch, of_copy=share
  )
  rows = [row(1, 32768, 8, 0.9), row(64, 8192, 8, 0.7), row(1, 1024, 8, 0.2), row(1, 8192, 1, 0.1)]
  found = judge(*rows)["decoding, share of a copy's bandwidth, cache >= 8192"]
  assert (found.found, found.verdict) == (0.7, "miss")


def test_slowdown_and_overheads():
  block = lambda k, slowdown: dict(
    stage="model", kind="block", batch_size=1, block_size=k, slowdown=slowdown
  )
  sampler = dict(stage="model", kind="sampler", decoder="ar", overhead=0.051)
  found = judge(block(16, 1.04), block(64, 1.4), sampler)
  assert found["time(16) / time(1), batch 1"].verdict == "pass"
  assert found["overhead of the AR sampler"].verdict == "miss"


def test_blocks_are_compared_with_single_tokens_inside_their_samplers():
  sampler = lambda name, seconds: dict(
    stage="model", kind="sampler", decoder=name, forward_seconds=seconds
  )
  found = judge(sampler("ar", 1.0), sampler("sbd block_size=16", 1.08))
  name = "SBD's forwards / AR's, in their samplers, k = 16"
  assert (found[name].found, found[name].verdict) == (1.08, "miss")
  assert judge(sampler("ar", 1.0))[name].verdict == "not measured"


def test_wrong_results_count_wherever_they_are_found():
  cpu = {"stage": "correctness", "provenance": {"device": "cpu"}}
  right = {"stage": "correctness", "ok": True}
  assert judge(right, device=cpu)["wrong results"].verdict == "pass"
  crashed = {"stage": "correctness", "error": "XlaRuntimeError: ..."}
  found = judge(right, crashed, {"stage": "correctness", "ok": False}, device=cpu)
  assert (found["wrong results"].found, found["wrong results"].verdict) == (2, "miss")


def test_speed_is_judged_on_gpus_alone():
  cpu = {"stage": "attention", "provenance": {"device": "cpu"}}
  found = judge(attention("pallas_gpu", 1.0), attention("xla_dense", 9.0), device=cpu)
  assert found["forward, x XLA dense, SBD L=4096"].verdict == "not measured"
