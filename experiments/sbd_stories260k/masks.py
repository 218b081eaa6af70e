"""Draws the layout and the masks of Set Block Decoding (Figures 3 and 8 to 10), from the rules in use.

python experiments/sbd_stories260k/masks.py --out=experiments/sbd_stories260k/masks.png
"""

import argparse
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sbdjax import corruption, masks
from sbdjax.data.files import write_atomically
from sbdjax.evals import mask_plot

LENGTH, BLOCK = 12, 4
MASK = -1
BLOCKS = LENGTH // BLOCK
STARTS = list(range(0, LENGTH, BLOCK))


def training() -> tuple[np.ndarray, list[str]]:
  """The mask over [clean x; masked x-hat], and the names of its blocks."""
  seen = np.asarray(masks.dense(masks.SBDTrain(BLOCK), 2 * LENGTH, 2 * LENGTH))[0]
  return seen, [f"x{i + 1}" for i in range(BLOCKS)] + [f"x̂{i + 1}" for i in range(BLOCKS)]


def decoding(num_causal: int) -> np.ndarray:
  """A forward over a cache of two blocks: `num_causal` finished tokens, then k masks."""
  length = jnp.array([2 * BLOCK - num_causal])
  rule = masks.Cached(length, jnp.array([0]), num_causal)
  queries = num_causal + BLOCK
  return np.asarray(masks.dense(rule, queries, 2 * BLOCK - num_causal + queries))[0]


def layout(axes, seed: int = 0) -> None:
  """Input and target of every place (Figure 8): both halves have targets, masked ones where masked."""
  tokens = jnp.arange(1, LENGTH + 1)[None]
  keys = corruption.example_keys(jax.random.key(seed), jnp.array([0]))
  hidden = np.asarray(corruption.mask_at_random(keys, tokens, MASK)[1])[0]
  place = [str(i) for i in range(1, LENGTH + 1)]
  given = place + ["m" if gone else text for gone, text in zip(hidden, place, strict=True)]
  targets = [*place[1:], ""] + [
    text if gone else "" for gone, text in zip(hidden, place, strict=True)
  ]
  axes.set_xlim(-0.5, 2 * LENGTH - 0.5)
  axes.set_ylim(-0.6, 1.6)
  for y, texts, name in ((1, given, "input"), (0, targets, "target")):
    axes.text(-0.8, y, name, ha="right", va="center", fontsize=9)
    for i, text in enumerate(texts):
      colour = "#D55E00" if text == "m" or (y == 0 and i >= LENGTH and text) else "#0072B2"
      axes.text(i, y, text, ha="center", va="center", fontsize=9, color=colour)
  for edge in [*STARTS, *(LENGTH + s for s in STARTS), 2 * LENGTH]:
    axes.axvline(edge - 0.5, color="#BBBBBB", lw=1.6 if edge == LENGTH else 0.6)
  axes.set_axis_off()
  axes.set_title(f"Figure 8: clean half | masked half, blocks of {BLOCK}", fontsize=10)


def draw(path: pathlib.Path) -> None:
  figure = Figure(figsize=(11, 8), layout="constrained")
  FigureCanvasAgg(figure)
  parts = figure.subplot_mosaic(
    [["layout"] * 2, ["train", "first"], ["train", "inside"]], height_ratios=[0.5, 1, 1]
  )
  layout(parts["layout"])
  seen, names = training()
  edges = [*STARTS, *(LENGTH + s for s in STARTS)]
  kind = np.where(np.arange(2 * LENGTH) < LENGTH, 1, 2)
  title = "Figures 3 and 9: training"
  mask_plot.panel(
    parts["train"], seen, kind, (edges, edges), (names, names), title, strong=(LENGTH,)
  )
  for name, num_causal, text in (
    ("first", BLOCK, "Figure 10: first forward of a block"),
    ("inside", 0, "Figure 10: the forwards after it"),
  ):
    seen = decoding(num_causal)
    queries = seen.shape[0]
    held = seen.shape[1] - queries
    kind = np.where(np.arange(seen.shape[1]) < held + num_causal, 1, 2)
    rows = ([0, BLOCK], ["x2", "x̂3"]) if num_causal else ([0], ["x̂3"])
    columns = [0, BLOCK, 2 * BLOCK]
    mask_plot.panel(
      parts[name], seen, kind, (rows[0], columns), (rows[1], ["x1", "x2", "x̂3"]), text, strong=(held,)
    )  # fmt: skip
  figure.suptitle(
    "What a query (row) sees of the keys: clean x (blue), masked x̂ (orange)", fontsize=10
  )
  write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=110))


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--out", required=True, help="the PNG to write")
  draw(pathlib.Path(parser.parse_args(argv).out))
  return 0


if __name__ == "__main__":
  sys.exit(main())
