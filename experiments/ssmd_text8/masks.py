"""Draws the attention of masked diffusion, of AR and of AR over an order (Figure 5), from the rules in use.

python experiments/gallery.py ssmd_text8/masks.png
"""

import pathlib

import numpy as np

from sbdjax import figures, masks
from sbdjax.evals import mask_plot
from sbdjax.masks import Mask

# The text and the order of the paper's Figures 1 and 5.
WORDS = "Speculation is like hazarding a guess".split()
ORDER = [WORDS.index(word) for word in "guess a is hazarding like Speculation".split()]
NATURAL = list(range(len(WORDS)))
PANELS: dict[str, tuple[Mask, list[int]]] = {
  "masked diffusion: all see all": (masks.Full(), NATURAL),
  "AR: causal, left to right": (masks.Causal(), NATURAL),
  "the head: causal in the order σ": (masks.Causal(), ORDER),
}


def seen_by_place(rule: Mask, order: list[int]) -> np.ndarray:
  """Bool [query, key] in the order of the text, of a rule for tokens that come as `order` says."""
  count = len(order)
  seen = np.zeros((count, count), bool)
  seen[np.ix_(order, order)] = np.asarray(masks.dense(rule, count, count))[0]
  return seen


def draw(path: pathlib.Path) -> None:
  """Three masks over one sentence; a row per query, a column per key."""
  places = NATURAL
  with figures.drawing(path, figures.PAGE, 3.0) as figure:
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (title, (rule, order)) in zip(panels, PANELS.items(), strict=True):
      seen, kind = seen_by_place(rule, order), np.ones(len(WORDS), int)
      mask_plot.panel(axes, seen, kind, (places, places), (WORDS, WORDS), title)
      axes.tick_params(axis="x", rotation=60)
