"""Draws the training masks of Jacobi Forcing, from the rules that training uses.

python experiments/jacobi_stories260k/masks.py --out=experiments/jacobi_stories260k/masks.png
"""

import argparse
import pathlib
import sys

import jax.numpy as jnp
import numpy as np

from sbdjax import figures, masks
from sbdjax.evals import mask_plot

PROMPT, BLOCK, BLOCKS, WINDOW = 3, 3, 4, 2
START, NOISY = jnp.array([PROMPT]), BLOCK * BLOCKS
RULES = {
  "noisy context (NC, the paper's)": masks.JacobiTrain(START, BLOCK, NOISY),
  "clean context (CLLM)": masks.JacobiTrain(START, BLOCK, NOISY, 1),
  f"clean before {WINDOW} blocks (public trainer)": masks.JacobiTrain(START, BLOCK, NOISY, WINDOW),
  f"clean inside {WINDOW} blocks (NC-IC)": masks.JacobiTrainCleanWindow(
    START, BLOCK, NOISY, WINDOW
  ),
}


def draw(path: pathlib.Path) -> None:
  """Four contexts of training; a row per query, a column per key."""
  clean = PROMPT + NOISY
  total = clean + NOISY
  edges = [0, *range(PROMPT, clean, BLOCK), *range(clean, total, BLOCK)]
  names = ["x", *(f"y{i + 1}*" for i in range(BLOCKS)), *(f"y{i + 1}" for i in range(BLOCKS))]
  with figures.drawing(path, figures.PAGE, 7.2) as figure:
    for axes, (title, rule) in zip(figure.subplots(2, 2).flat, RULES.items(), strict=True):
      seen = np.asarray(masks.dense(rule, total, total))[0]
      kind = np.where(np.arange(total) < clean, 1, 2)
      both = (edges, edges), (names, names)
      mask_plot.panel(axes, seen, kind, *both, title, strong=(PROMPT, clean))


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--out", required=True, help="the PNG to write")
  draw(pathlib.Path(parser.parse_args(argv).out))
  return 0


if __name__ == "__main__":
  sys.exit(main())
