"""Draws the training masks of Jacobi Forcing, from the rules that training uses.

python experiments/jacobi_stories260k/masks.py --out=experiments/jacobi_stories260k/masks.png
"""

import argparse
import pathlib
import sys

import jax.numpy as jnp
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sbdjax import masks
from sbdjax.data.files import write_atomically
from sbdjax.evals import mask_plot

PROMPT, BLOCK, BLOCKS, WINDOW = 3, 3, 4, 2
START, NOISY = jnp.array([PROMPT]), BLOCK * BLOCKS
RULES = {
  "noisy (NC, the paper's)": masks.JacobiTrain(START, BLOCK, NOISY),
  "clean (CLLM)": masks.JacobiTrain(START, BLOCK, NOISY, 1),
  f"noisy_window, w = {WINDOW} (public trainer)": masks.JacobiTrain(START, BLOCK, NOISY, WINDOW),
  f"clean_window, w = {WINDOW} (NC-IC)": masks.JacobiTrainCleanWindow(START, BLOCK, NOISY, WINDOW),
}


def draw(path: pathlib.Path):
  clean = PROMPT + NOISY
  total = clean + NOISY
  edges = [0, *range(PROMPT, clean, BLOCK), *range(clean, total, BLOCK)]
  names = ["x", *(f"y{i + 1}*" for i in range(BLOCKS)), *(f"y{i + 1}" for i in range(BLOCKS))]
  figure = Figure(figsize=(9, 9.4), layout="constrained")
  for axes, (title, rule) in zip(figure.subplots(2, 2).flat, RULES.items(), strict=True):
    seen = np.asarray(masks.dense(rule, total, total))[0]
    kind = np.where(np.arange(total) < clean, 1, 2)
    both = (edges, edges), (names, names)
    mask_plot.panel(axes, seen, kind, *both, title, strong=(PROMPT, clean))
  figure.suptitle(
    f"What a query (row) sees of the keys: prompt x, fixed points y* (blue), noisy points y "
    f"(orange), blocks of {BLOCK}",
    fontsize=10,
  )
  FigureCanvasAgg(figure)
  write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=120))


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--out", required=True, help="the PNG to write")
  draw(pathlib.Path(parser.parse_args(argv).out))
  return 0


if __name__ == "__main__":
  sys.exit(main())
