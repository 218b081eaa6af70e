"""Draws the training masks of Jacobi Forcing, from the rules that training uses.

python experiments/jacobi_stories260k/masks.py --out=experiments/jacobi_stories260k/masks.png
"""

import argparse
import pathlib
import sys

import jax.numpy as jnp
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from sbdjax import masks
from sbdjax.data.files import write_atomically

PROMPT, BLOCK, BLOCKS, WINDOW = 3, 3, 4, 2
START, NOISY = jnp.array([PROMPT]), BLOCK * BLOCKS
RULES = {
  "noisy (NC, the paper's)": masks.JacobiTrain(START, BLOCK, NOISY),
  "clean (CLLM)": masks.JacobiTrain(START, BLOCK, NOISY, 1),
  f"noisy_window, w = {WINDOW} (public trainer)": masks.JacobiTrain(START, BLOCK, NOISY, WINDOW),
  f"clean_window, w = {WINDOW} (NC-IC)": masks.JacobiTrainCleanWindow(START, BLOCK, NOISY, WINDOW),
}
# Nothing, clean key, noisy key.
COLOURS = ListedColormap(["#F2F2F2", "#0072B2", "#D55E00"])


def draw(path: pathlib.Path):
  clean = PROMPT + NOISY
  total = clean + NOISY
  edges = [0, *range(PROMPT, clean, BLOCK), *range(clean, total, BLOCK)]
  names = ["x", *(f"y{i + 1}*" for i in range(BLOCKS)), *(f"y{i + 1}" for i in range(BLOCKS))]
  middles = [(a + b) / 2 - 0.5 for a, b in zip(edges, [*edges[1:], total], strict=True)]
  figure = Figure(figsize=(9, 9.4), layout="constrained")
  for axes, (title, rule) in zip(figure.subplots(2, 2).flat, RULES.items(), strict=True):
    seen = np.asarray(masks.dense(rule, total, total))[0]
    kind = np.where(np.arange(total) < clean, 1, 2)
    axes.imshow(np.where(seen, kind, 0), cmap=COLOURS, vmin=0, vmax=2)
    for edge in edges[1:]:
      width = 1.6 if edge in (PROMPT, clean) else 0.8
      axes.axhline(edge - 0.5, color="white", lw=width)
      axes.axvline(edge - 0.5, color="white", lw=width)
    axes.set_xticks(middles, names, fontsize=8)
    axes.set_yticks(middles, names, fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(title, fontsize=10)
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
