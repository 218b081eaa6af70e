"""Draws the layout and the masks of Set Block Decoding (Figures 3 and 8 to 10), from the rules in use.

python experiments/sbd_stories260k/masks.py --out=experiments/sbd_stories260k/masks.png
"""

import argparse
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

from sbdjax import corruption, figures, masks
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
    axes.text(-0.8, y, name, ha="right", va="center")
    for i, text in enumerate(texts):
      masked = text == "m" or (y == 0 and i >= LENGTH and text)
      colour = figures.COLOURS[1 if masked else 0]
      axes.text(i, y, text, ha="center", va="center", color=colour)
  for edge in [*STARTS, *(LENGTH + s for s in STARTS), 2 * LENGTH]:
    axes.axvline(edge - 0.5, color="#BBBBBB", lw=1.6 if edge == LENGTH else 0.6)
  axes.set_axis_off()
  axes.set_title(f"one row of training: clean half | masked half, blocks of {BLOCK}")


def draw(path: pathlib.Path) -> None:
  """Layout and masks; a row per query, a column per key."""
  with figures.drawing(path, figures.PAGE, 5.0) as figure:
    parts = figure.subplot_mosaic(
      [["layout"] * 2, ["train", "first"], ["train", "inside"]], height_ratios=[0.45, 1, 1]
    )
    layout(parts["layout"])
    seen, names = training()
    edges = [*STARTS, *(LENGTH + s for s in STARTS)]
    kind = np.where(np.arange(2 * LENGTH) < LENGTH, 1, 2)
    both = (edges, edges), (names, names)
    mask_plot.panel(parts["train"], seen, kind, *both, "training", strong=(LENGTH,))
    for name, num_causal, text in (
      ("first", BLOCK, "decoding: first forward of a block"),
      ("inside", 0, "decoding: the forwards after it"),
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


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--out", required=True, help="the PNG to write")
  draw(pathlib.Path(parser.parse_args(argv).out))
  return 0


if __name__ == "__main__":
  sys.exit(main())
