"""Jacobi trajectories drawn and counted (Jacobi Forcing, Figures 3 and 4).

  python -m sbdjax trajectories --config=preset:stories_jacobi --workdir=runs/base_trajectories \
    --config.collect.limit=64 --config.collect.shard_size=64
  python experiments/jacobi_stories260k/trajectory.py --trajectories=runs/base_trajectories \
    --out=experiments/jacobi_stories260k/trajectory

Writes OUT.png, one text's blocks point by point, and OUT.jsonl, one line of counts over all texts.
A point is what stands in a block after a forward. Its *prefix* is what is right from the left, which
verification keeps; a *stationary* token is right, and stays so, behind a wrong one; a run of two or
more of these is an n-gram that the paper's recycling can use. A forward *fast-forwards* by every
token beyond the first that it adds to the prefix.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from sbdjax.data.files import write_atomically
from sbdjax.data.tokenizers import Tokenizer, load_tokenizer
from sbdjax.data.trajectories import Example, Store
from sbdjax.evals import record

WRONG, PREFIX, STATIONARY = 0, 1, 2
# Light grey, and two colours of Okabe and Ito.
COLOURS = ListedColormap(["#EDEDED", "#56B4E9", "#E69F00"])


def kinds(points_CxV: np.ndarray) -> np.ndarray:
  """What each token of each point is: int [C, V] of WRONG, PREFIX, STATIONARY.

  The last point is the fixed point.
  """
  right = points_CxV == points_CxV[-1]
  prefix = np.cumprod(right, axis=1).astype(bool)
  stays = np.flip(np.cumprod(np.flip(right, axis=0), axis=0), axis=0).astype(bool)
  return np.where(prefix, PREFIX, np.where(stays, STATIONARY, WRONG))


def runs(row_V: np.ndarray) -> list[int]:
  """Lengths of the runs of stationary tokens."""
  padded = np.concatenate([[0], row_V == STATIONARY, [0]]).astype(int)
  edges = np.flatnonzero(np.diff(padded))
  return (edges[1::2] - edges[::2]).tolist()


def counts(examples: Sequence[Example]) -> dict[str, Any]:
  """Sums over all blocks of all texts."""
  total: collections.Counter[str] = collections.Counter()
  lengths: collections.Counter[int] = collections.Counter()
  for example in examples:
    for points in example.trajectories:
      kind = kinds(points)
      prefix = (kind == PREFIX).sum(axis=1)
      gained = np.diff(prefix)
      total["blocks"] += 1
      total["tokens"] += points.shape[1]
      total["forwards"] += len(points) - 1
      total["fast_forwarded_tokens"] += int(np.maximum(gained - 1, 0).sum())
      total["forwards_that_fast_forward"] += int((gained > 1).sum())
      # Of the points that a forward made and that are not the last.
      for row in kind[1:-1]:
        total["points_inside"] += 1
        total["stationary_tokens"] += int((row == STATIONARY).sum())
        lengths.update(n for n in runs(row) if n > 1)
  total["useful_n_grams"] = sum(lengths.values())
  inside = max(1, total["points_inside"])
  return {
    **total,
    "tokens_per_forward": total["tokens"] / max(1, total["forwards"]),
    "stationary_tokens_per_point": total["stationary_tokens"] / inside,
    "useful_n_grams_per_point": total["useful_n_grams"] / inside,
    "n_gram_lengths": {str(n): lengths[n] for n in sorted(lengths)},
  }


def busiest(examples: Sequence[Example], blocks: int) -> int:
  """The text whose first blocks hold most stationary tokens."""

  def found(example: Example) -> int:
    return sum(int((kinds(p)[1:-1] == STATIONARY).sum()) for p in example.trajectories[:blocks])

  return max(range(len(examples)), key=lambda i: found(examples[i]))


def draw(example: Example, tokenizer: Tokenizer, blocks: int, path: pathlib.Path) -> None:
  """The first blocks of a text: a row a point, from y(0) down to the fixed point."""
  shown = example.trajectories[:blocks]
  figure = Figure(figsize=(11, 0.6 + 0.24 * sum(len(p) + 1.6 for p in shown)), layout="constrained")
  FigureCanvasAgg(figure)
  heights = [len(points) for points in shown]
  panels = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights)[:, 0]
  for number, (axes, points) in enumerate(zip(panels, shown, strict=True), 1):
    axes.imshow(kinds(points), cmap=COLOURS, vmin=0, vmax=2, aspect="auto")
    for (c, v), token in np.ndenumerate(points):
      piece = tokenizer.decode([int(token)]).replace("\n", "\\n")
      axes.text(v, c, piece, ha="center", va="center", fontsize=6.5, parse_math=False)
    axes.set_yticks(range(len(points)), [f"y({c})" for c in range(len(points))], fontsize=6.5)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(f"block {number}: {len(points) - 1} forwards", fontsize=8, loc="left")
  figure.suptitle(
    "blue: right from the left; orange: right and staying so behind a wrong token; grey: wrong",
    fontsize=9,
  )
  write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=110))


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--trajectories", required=True, help="folder of the verb trajectories")
  parser.add_argument("--out", required=True, help="OUT.png and OUT.jsonl are written")
  parser.add_argument("--tokenizer", default="tok512", help="of the model that decoded")
  parser.add_argument("--blocks", type=int, default=3, help="of one text that are drawn")
  args = parser.parse_args(argv)

  store = Store(args.trajectories)
  examples = list(store)
  at = busiest(examples, args.blocks)
  out = pathlib.Path(args.out)
  draw(examples[at], load_tokenizer(args.tokenizer), args.blocks, out.with_suffix(".png"))
  kept = ("checkpoint", "block_size", "examples", "draft", "seed", "weights_crc32")
  settings = {name: store.settings[name] for name in kept if name in store.settings}
  line = {"settings": settings | {"drawn_text": at}, **counts(examples), **record.provenance()}
  write_atomically(
    out.with_suffix(".jsonl"), lambda file: file.write(json.dumps(line).encode() + b"\n")
  )
  print(json.dumps({k: v for k, v in line.items() if k not in ("packages", "platform")}))
  return 0


if __name__ == "__main__":
  sys.exit(main())
