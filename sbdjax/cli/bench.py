"""Measure speed: bench NAME [flags]; `bench NAME --help` tells the flags.

attention: attention alone, against other implementations and the memory's bandwidth. decoding:
tokens/s of AR and SBD on the device at hand. peers: greedy decoding beside transformers and
llama2.c on the same weights, in turns. throughput: many prompts of mixed lengths, continuous
against padded batches. training: time and memory of an update
against the length of rows and the size of the vocabulary. parallel: latency of a forward against the
tokens it carries, and where more of them stop being free. roofline: what a forward must cost on
hardware that need not be at hand, from its bandwidth and arithmetic. compile: what compiling costs,
and that it does not grow with depth.
"""

from __future__ import annotations

from collections.abc import Callable

from sbdjax.cli import (
  bench_attention,
  bench_compile,
  bench_decoding,
  bench_parallel,
  bench_peers,
  bench_roofline,
  bench_throughput,
  bench_training,
)
from sbdjax.cli.common import Parser
from sbdjax.errors import UsageError
from sbdjax.settings import nearest

# name -> argv -> exit code
BENCHES: dict[str, Callable[[list[str]], int]] = {
  "attention": bench_attention.main,
  "compile": bench_compile.main,
  "decoding": bench_decoding.main,
  "parallel": bench_parallel.main,
  "peers": bench_peers.main,
  "roofline": bench_roofline.main,
  "throughput": bench_throughput.main,
  "training": bench_training.main,
}


def main(argv: list[str]) -> int:
  """Runs the verb; returns the exit code."""
  if not argv or argv[0].startswith("-"):
    parser = Parser(prog="bench", description=__doc__)
    parser.add_argument("name", help=f"one of {', '.join(BENCHES)}")
    parser.parse_args(argv[:1])
  name, *rest = argv
  if name not in BENCHES:
    raise UsageError(
      f"unknown benchmark {name!r}{nearest(name, BENCHES)}: choose one of {', '.join(BENCHES)}"
    )
  return BENCHES[name](rest)
