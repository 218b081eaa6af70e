"""Pictures of attention masks, from the rules that training and decoding use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sbdjax import figures


def panel(
  axes: Any,
  seen_TxS: np.ndarray,
  kind_S: np.ndarray,
  edges: tuple[Sequence[int], Sequence[int]],
  names: tuple[Sequence[str], Sequence[str]],
  title: str,
  strong: Sequence[int] = (),
) -> None:
  """One mask: a row per query, a column per key, coloured where the query sees the key.

  Args:
    axes: of matplotlib.
    seen_TxS: bool.
    kind_S: int, 1 or 2: the colour of each key.
    edges: indices where groups of queries and of keys begin, the first 0.
    names: of those groups.
    title: of the panel.
    strong: edges that are drawn wider.
  """
  axes.imshow(np.where(seen_TxS, kind_S, 0), cmap=figures.KINDS, vmin=0, vmax=2)
  rows, columns = edges
  for line, starts in ((axes.axhline, rows), (axes.axvline, columns)):
    for edge in starts[1:]:
      line(edge - 0.5, color="white", lw=1.6 if edge in strong else 0.8)
  for ticks, starts, names_of, size in (
    (axes.set_yticks, rows, names[0], seen_TxS.shape[0]),
    (axes.set_xticks, columns, names[1], seen_TxS.shape[1]),
  ):
    middles = [(a + b) / 2 - 0.5 for a, b in zip(starts, [*starts[1:], size], strict=True)]
    ticks(middles, names_of, fontsize=7)
  axes.tick_params(length=0)
  axes.spines[:].set_visible(False)
  axes.grid(False)
  axes.set_title(title, fontsize=8)
