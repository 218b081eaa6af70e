"""What peers are compared by: turns, ratios with intervals, tokens, and bytes of weights."""

import jax
import numpy as np
import pytest

from sbdjax.bench import peers, shapes
from sbdjax.bench.peers import Contestant, Turn
from sbdjax.bench.timing import Summary, TimedDecoder
from sbdjax.decode.base import Limits
from sbdjax.decode.causal.ar import AR
from sbdjax.errors import UsageError
from sbdjax.nn.transformer import TransformerConfig
from tests import models
from tests.reference import network


def test_every_turn_starts_with_the_next_call_and_a_warm_up_is_apart():
  log = []

  def call(name):
    def run():
      log.append(name)
      return len(log)

    return run

  first, found = peers.in_turns([call("a"), call("b"), call("c")], 4)
  assert "".join(log) == "abc" + "abc" + "bca" + "cab" + "abc"
  assert first == [1, 2, 3]
  assert found == [(4, 9, 11, 13), (5, 7, 12, 14), (6, 8, 10, 15)]


def test_rows_by_hand():
  ar = [Turn([5] * 10, 10, 10, 1.0), Turn([5] * 10, 10, 10, 2.0), Turn([5] * 10, 10, 10, 4.0)]
  # 8 of 9 tokens timed, in 4 forwards; 80, 20 and 20 tokens a second.
  other = [Turn([5] * 9, 8, 4, s) for s in (0.1, 0.4, 0.4)]
  contestants = [Contestant("ar", 2, 100, lambda: ar[0]), Contestant("x", 1, 60, lambda: ar[0])]
  read = {1: Summary(1200.0, 1.0, 1.0), 2: Summary(1000.0, 1.0, 1.0)}
  difference = peers.Difference(3, 5, 6, 0.5)
  bounds = lambda ratios: (min(ratios), max(ratios))
  first, second = peers.timings(contestants, [ar, other], [None, difference], read, bounds)
  assert (first.tokens_per_second, first.low, first.high) == (5.0, 2.5, 10.0)
  assert (first.tokens_per_forward, first.ratio, first.tokens) == (1.0, 1.0, 10)
  assert (first.bandwidth, first.of_read) == (500.0, 0.5)
  assert (second.tokens_per_second, second.tokens_per_forward, second.tokens) == (20.0, 2.0, 9)
  assert second.ratio == pytest.approx(0.125)  # of 1/8, 1/4 and 1/8
  assert (second.ratio_low, second.ratio_high) == pytest.approx((0.125, 0.25))
  assert (second.bandwidth, second.of_read) == (600.0, 0.5)
  assert second.difference is difference and second.threads == 1


def test_the_first_run_that_differs_is_told():
  gap = lambda agreed, token, other: len(agreed) + (token - other) / 100
  runs = [[1, 2, 3], [1, 2], [1, 9, 3, 4], [7, 2, 3]]
  assert peers.compare_tokens([1, 2, 3], runs, gap) == peers.Difference(1, 2, 9, 1 - 0.07)
  assert peers.compare_tokens([1, 2, 3], runs[:2], gap) is None  # one that ends early agrees


def test_the_gap_is_that_of_the_reference_network():
  lm = models.lm_of()
  params = models.random_params(lm)
  text = np.array([1, 5, 2, 8])
  logits = network.forward(lm.config, params, text, np.arange(4), np.tri(4, dtype=bool))[-1]
  found = peers.logit_gap(lm, params, text, 3, 7)
  assert found == pytest.approx(logits[3] - logits[7], abs=1e-4)


@pytest.mark.parametrize("tied", [True, False])
def test_a_forward_reads_all_but_rows_of_the_embedding(tied):
  params = models.random_params(models.lm_of(tie_embeddings=tied))
  per_layer = 2 * 16 + 16 * (16 + 8 + 8) + 16 * 16 + 3 * 16 * 20
  count = 2 * per_layer + 16 + 13 * 16  # layers, final norm, head
  assert peers.weights_read(params) == 4 * count and peers.weights_read(params, 2) == 2 * count
  drafting = models.lm_of(tie_embeddings=tied, mask_id=12, adapter={"rank": 2})
  assert peers.weights_read(models.random_params(drafting)) == 4 * count  # AR does not read it


def test_ours_starts_from_one_token():
  lm = models.lm_of()
  params = models.random_params(lm)
  turn = peers.ours(TimedDecoder(lm, Limits(5)), AR(), params, 3)()
  assert (turn.timed, turn.forwards) == (5, 5) and turn.seconds > 0
  text = np.array([3, *turn.tokens])
  visible = np.tri(6, dtype=bool)
  logits = network.forward(lm.config, params, text, np.arange(6), visible)
  assert np.argmax(logits, axis=-1)[:5].tolist() == turn.tokens


@pytest.mark.parametrize("threads", [1, 2])
def test_reading_is_told_in_bytes_a_second(monkeypatch, threads):
  """A clock of half a second between its two looks: four readings of 64 KiB."""
  now = iter([10.0, 10.5])
  read = peers.reader(1 << 16, threads)
  monkeypatch.setattr(peers.time, "perf_counter", lambda: next(now))
  assert read() == 4 * (1 << 16) / 0.5


def test_threads_are_those_the_process_may_have(monkeypatch):
  monkeypatch.setattr(peers.os, "sched_getaffinity", lambda pid: {0, 2, 5}, raising=False)
  assert peers.thread_counts() == [1, 3]
  monkeypatch.setattr(peers.os, "sched_getaffinity", lambda pid: {4})
  assert peers.thread_counts() == [1]


@pytest.mark.parametrize(("name", "millions"), [("15M", 15.2), ("110M", 109.5), ("135M", 134.5)])
def test_shapes_are_those_of_their_names(name, millions):
  from sbdjax.lm import make_lm

  lm = make_lm(TransformerConfig(**shapes.named(name, "--random")))
  params = jax.eval_shape(lm.init, jax.random.key(0))
  assert sum(x.size for x in jax.tree.leaves(params)) / 1e6 == pytest.approx(millions, abs=0.1)


def test_a_shape_of_its_own():
  config = TransformerConfig(**shapes.named("96x3x500", "--random"))
  sizes = (config.d_model, config.num_layers, config.vocab_size, config.head_dim, config.d_ff)
  assert sizes == (96, 3, 500, 48, 256)
  assert shapes.named("512x8", "--random")["num_heads"] == 8


@pytest.mark.parametrize("text", ["15", "12x2", "0x2", "8x0", "8x2x1", "x", "8x2x9x9", ""])
def test_no_other_shape(text):
  with pytest.raises(UsageError, match="--random="):
    shapes.named(text, "--random")
