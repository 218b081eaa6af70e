"""Jacobi trajectories drawn and counted (Jacobi Forcing, Figures 3 and 4).

  python -m sbdjax trajectories --config=preset:stories_jacobi --workdir=runs/base_trajectories \
    --config.collect.limit=64 --config.collect.shard_size=64
  python experiments/jacobi_stories260k/trajectory.py --trajectories=runs/base_trajectories \
    --out=experiments/jacobi_stories260k/trajectory

Writes OUT.png, one text's blocks point by point, and OUT.jsonl, one line with counts over all texts
and with what is drawn.

  python experiments/jacobi_stories260k/trajectory.py --multiblock=runs/jacobi/round2 \
    --out=experiments/jacobi_stories260k/multiblock

draws the first tokens of a text of multi-block decoding with recycling, several blocks in each forward.

A point is a block's tokens after one forward. Its *prefix* is what is right from the left, which
verification keeps; a *stationary* token is right, and stays so, after a wrong one; a run of two or
more of these is an n-gram that the paper's recycling can use. A forward *fast-forwards* by every
token beyond the first that it adds to the prefix.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from matplotlib.colors import ListedColormap

from sbdjax import figures
from sbdjax.data.files import write_atomically
from sbdjax.data.tokenizers import Tokenizer, load_tokenizer
from sbdjax.data.trajectories import Example, Store
from sbdjax.decode.base import Limits
from sbdjax.decode.jacobi.jacobi import JacobiMultiblock
from sbdjax.decode.jacobi.recycling import NGrams
from sbdjax.decode.stream import Frame, Streamer
from sbdjax.evals import record
from sbdjax.interop.pretrained import load_pretrained

NONE, WRONG, PREFIX, STATIONARY = -1, 0, 1, 2
# The palette's light colours, under black letters.
COLOURS = ListedColormap([figures.PALE, figures.COLOURS[5], figures.COLOURS[4]], under="white")
HERE = pathlib.Path(__file__).resolve().parent


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


def text_at(examples: Sequence[Example], blocks: int, quantile: float) -> int:
  """The text at this quantile of how many stationary tokens its first blocks hold; 1: the most."""

  def found(example: Example) -> int:
    return sum(int((kinds(p)[1:-1] == STATIONARY).sum()) for p in example.trajectories[:blocks])

  order = sorted(range(len(examples)), key=lambda i: found(examples[i]), reverse=True)
  return order[round((1 - quantile) * (len(order) - 1))]


def shown(example: Example, tokenizer: Tokenizer, blocks: int) -> list[dict[str, Any]]:
  """The first blocks of a text as they are recorded and drawn.

  Returns:
    Of each block `pieces` and `kinds`, [points][tokens]: the text of each token and what it is.
  """
  return [
    {
      "pieces": [[tokenizer.decode([int(token)]) for token in point] for point in points],
      "kinds": kinds(points).tolist(),
    }
    for points in example.trajectories[:blocks]
  ]


def points_of(frames: Iterable[Frame], num_tokens: int) -> np.ndarray:
  """The first tokens of a text after each forward, drafts included: int [C, V], -1 where there are none.

  The last point is the text.
  """
  points = []
  for frame in frames:
    text = frame.result.tokens
    # The canvas has one place after the drafts, for the token that a forward adds to them.
    drafts = [token for token in frame.canvas if token >= 0][:-1]
    row = np.full(num_tokens, -1)
    known = [*text, *drafts[max(0, len(text) - frame.committed) :]][:num_tokens]
    row[: len(known)] = known
    points.append(row)
  points.append(np.pad(text[:num_tokens], (0, max(0, num_tokens - len(text))), constant_values=-1))
  points_CxV = np.stack(points)
  whole = int((points_CxV == points_CxV[-1]).all(axis=1).argmax())
  return points_CxV[: whole + 1]


def of_multiblock(checkpoint: str, prompt: str, num_tokens: int) -> dict[str, Any]:
  """A text of multi-block decoding with recycling, as it is recorded and drawn: see `shown`."""
  model = load_pretrained(checkpoint)
  recycling = NGrams(num_candidates=4)
  method = JacobiMultiblock(block_size=16, num_blocks=3, spawn_ratio=0.5, pool=recycling)
  tokenizer = model.need_tokenizer()
  prompts = [tokenizer.encode(prompt, bos=True)]
  streamer = Streamer(model.need_lm(), Limits(num_tokens + 32), method, model.params, prompts)
  points_CxV = points_of(streamer.frames(0, jax.random.key(0)), num_tokens)
  kind = np.where(points_CxV < 0, NONE, kinds(points_CxV))
  piece = lambda token: tokenizer.decode([int(token)]) if token >= 0 else ""
  return {"pieces": [list(map(piece, row)) for row in points_CxV], "kinds": kind.tolist()}


def draw(
  path: pathlib.Path,
  blocks: Sequence[Mapping[str, Any]] | str = "trajectory.jsonl",
) -> None:
  """Blocks of a text: one row per point, from y(0) down to the fixed point.

  Args:
    path: PNG to write; a PDF is written beside it.
    blocks: of `shown`; or the record in this folder that has them.
  """
  if isinstance(blocks, str):
    blocks = json.loads((HERE / blocks).read_text())["drawn"]
  heights = [len(block["kinds"]) for block in blocks]
  size = min(5.5, 200 / max(len(block["kinds"][0]) for block in blocks))
  with figures.drawing(path, figures.PAGE, 0.13 * sum(h + 2 for h in heights)) as figure:
    panels = figure.subplots(len(blocks), 1, squeeze=False, height_ratios=heights)[:, 0]
    for number, (axes, block) in enumerate(zip(panels, blocks, strict=True), 1):
      axes.imshow(block["kinds"], cmap=COLOURS, vmin=0, vmax=2, aspect="auto")
      for c, pieces in enumerate(block["pieces"]):
        for v, piece in enumerate(pieces):
          text = piece.replace("\n", "\\n")
          axes.text(v, c, text, ha="center", va="center", fontsize=size, parse_math=False)
      axes.set_yticks(
        range(len(block["kinds"])), [f"y({c})" for c in range(len(block["kinds"]))], fontsize=5.5
      )
      axes.set_xticks([])
      axes.tick_params(length=0)
      axes.grid(False)
      axes.spines[:].set_visible(False)
      forwards = f"{len(block['kinds']) - 1} forwards"
      axes.set_title(f"block {number}: {forwards}" if len(blocks) > 1 else forwards, loc="left")


def of_folder(args: argparse.Namespace) -> dict[str, Any]:
  """Counts over all texts of a folder, and one of them to draw."""
  store = Store(args.trajectories)
  examples = list(store)
  at = text_at(examples, args.blocks, args.quantile)
  kept = ("checkpoint", "block_size", "examples", "draft", "seed", "weights_crc32")
  settings = {name: store.settings[name] for name in kept if name in store.settings}
  drawn = shown(examples[at], load_tokenizer(args.tokenizer), args.blocks)
  return {"settings": settings | {"drawn_text": at}, **counts(examples), "drawn": drawn}


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  what = parser.add_mutually_exclusive_group(required=True)
  what.add_argument("--trajectories", help="folder of the verb trajectories")
  what.add_argument("--multiblock", metavar="CHECKPOINT", help="that decodes --prompt")
  parser.add_argument("--out", required=True, help="OUT.png and OUT.jsonl are written")
  parser.add_argument("--tokenizer", default="tok512", help="of the model that decoded")
  parser.add_argument("--blocks", type=int, default=3, help="of one text that are drawn")
  parser.add_argument(
    "--quantile", type=float, default=1.0, help="of texts by their stationary tokens; 1: the most"
  )
  parser.add_argument("--prompt", default="Once upon a time, there was a little girl named Lily.")
  parser.add_argument(
    "--tokens", type=int, default=48, help="of multi-block decoding that are drawn"
  )
  args = parser.parse_args(argv)

  provenance = record.provenance()  # before anything that git knows is written
  if args.trajectories:
    found = of_folder(args)
  else:
    settings = {"checkpoint": args.multiblock, "prompt": args.prompt, "tokens": args.tokens}
    found = {
      "settings": settings,
      "drawn": [of_multiblock(args.multiblock, args.prompt, args.tokens)],
    }
  out = pathlib.Path(args.out)
  draw(out.with_suffix(".png"), found["drawn"])
  line = found | provenance
  write_atomically(
    out.with_suffix(".jsonl"), lambda file: file.write(json.dumps(line).encode() + b"\n")
  )
  print(json.dumps({k: v for k, v in line.items() if k not in ("packages", "platform", "drawn")}))
  return 0


if __name__ == "__main__":
  sys.exit(main())
