"""Losses on a corpus, or benchmarks: --checkpoint=NAME|FILE|WORKDIR [--tasks=NAMES --data=DIR]

Without --tasks, the losses of `sbdjax.cli.evaluate_losses`; with it, the benchmarks of
`sbdjax.cli.evaluate_tasks`, whose flags `evaluate --tasks=NAMES --help` tells.
"""

from __future__ import annotations

from sbdjax.cli import evaluate_losses, evaluate_tasks


def main(argv: list[str]) -> int:
  """Runs the verb; returns the exit code."""
  benchmarks = any(arg.partition("=")[0] == "--tasks" for arg in argv)
  return (evaluate_tasks if benchmarks else evaluate_losses).main(argv)
