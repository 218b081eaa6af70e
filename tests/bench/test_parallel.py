"""Latency against tokens: the knee of known curves, and what a forward is."""

import dataclasses
import json

import numpy as np
import pytest

from sbdjax import __main__ as entry
from sbdjax import figures
from sbdjax.bench import parallel
from sbdjax.bench.parallel import ForwardTiming, Knee
from sbdjax.cli import bench_parallel
from tests.cli import checkpoints

TOKENS = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512])


@pytest.mark.parametrize("knee", [6, 50, 300])
def test_the_knee_of_a_roofline_is_found(knee):
  seconds = 2e-3 * np.maximum(1, TOKENS / knee)
  found = parallel.find_knee(TOKENS, seconds)
  np.testing.assert_allclose([found.tokens, found.floor], [knee, 2e-3], rtol=0.005)
  assert found.error < 0.005 and found.inside
  np.testing.assert_allclose(found(TOKENS), seconds, rtol=0.01)


def test_noise_and_a_rounded_corner_move_it_little():
  seconds = np.hypot(1, TOKENS / 40) * np.exp(0.1 * np.random.default_rng(0).normal(size=10))
  found = parallel.find_knee(TOKENS, seconds)
  assert 30 < found.tokens < 52 and 0.02 < found.error < 0.3


@pytest.mark.parametrize("seconds", [np.ones(10), TOKENS * 1.0])
def test_no_knee_where_all_points_lie_on_one_line(seconds):
  assert not parallel.find_knee(TOKENS, seconds).inside


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
  return checkpoints.write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.safetensors")


@pytest.mark.long
def test_every_block_size_and_number_of_tokens_is_timed(tiny, tmp_path, capsys):
  flags = ["--block_sizes=1,4", "--tokens=1,4,8", "--context=5", "--repeats=3", "--json"]
  plot = tmp_path / "latency.png"
  assert entry.main(["bench", "parallel", f"--checkpoint={tiny}", f"--plot={plot}", *flags]) == 0
  found = json.loads(capsys.readouterr().out)
  points = [(p["block_size"], p["tokens"]) for p in found["points"]]
  assert points == [(1, 1), (1, 4), (1, 8), (4, 4), (4, 8)]
  assert all(0 < p["low"] <= p["seconds"] <= p["high"] for p in found["points"])
  assert found["knee"]["tokens"] > 0 and plot.read_bytes().startswith(b"\x89PNG")


def test_any_number_of_block_sizes_is_drawn(tmp_path):
  """More than there are markers."""
  sizes = range(1, 2 + len(figures.MARKERS))
  points = [
    dataclasses.asdict(ForwardTiming(n, t, 1e-3 * t, 1e-3 * t, 1e-3 * t))
    for n in sizes
    for t in (8, 16)
  ]
  knee = dataclasses.asdict(Knee(8.0, 1e-3, 1e-3, True))
  bench_parallel.draw({"points": points, "knee": knee}, tmp_path / "p.png")
  assert (tmp_path / "p.png").is_file()


@pytest.mark.parametrize(
  ("flag", "message"),
  [
    ("--context=63", "make 65 tokens"),
    ("--tokens=1,2", "three numbers of --tokens"),
    ("--repeats=2", "--repeats"),
    ("--block_size=1", "did you mean '--block_sizes'"),
  ],
)
def test_bad_flags_are_one_line(tiny, capsys, flag, message):
  flags = ["--block_sizes=1,2", "--context=62"]
  code = entry.main(["bench", "parallel", f"--checkpoint={tiny}", *flags, flag])
  err = capsys.readouterr().err
  assert code == 2 and message in err and err.count("\n") == 1
