"""The drawings of the pages: masks from the rules in use, the layers from the test that holds them,
and the walks of a batch and of a block."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sbdjax import masks
from sbdjax.evals import mask_plot

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLUE, ORANGE, GREY, INK = "#0072B2", "#D55E00", "#E8E8E8", "#222222"
L, K = 12, 4  # tokens and block size of the drawn masks


def figure(width: float, height: float, *shares: int) -> tuple[Figure, Any]:
  """A figure of so many inches, and its axes in one row: one for each share of the width."""
  made = Figure(figsize=(width, height), layout="constrained")
  FigureCanvasAgg(made)
  widths = shares or (1,)
  return made, made.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]


def _panel(
  axes: Any,
  mask: masks.Mask,
  shape: tuple[int, int],
  blue: int,
  rows: tuple[Sequence[int], Sequence[str]],
  columns: tuple[Sequence[int], Sequence[str]],
  title: str,
  strong: Sequence[int] = (),
) -> None:
  """One mask, the keys before `blue` blue and the others orange."""
  seen = np.asarray(masks.dense(mask, *shape))[0]
  kind = np.where(np.arange(shape[1]) < blue, 1, 2)
  edges, names = (rows[0], columns[0]), (rows[1], columns[1])
  mask_plot.panel(axes, seen, kind, edges, names, title, strong=strong)


def _blocks(first: str, second: str = "") -> tuple[list[int], list[str]]:
  """Edges and names of the blocks of one half, or of two."""
  halves = [first, second] if second else [first]
  edges = [L * h + i for h in range(len(halves)) for i in range(0, L, K)]
  return edges, [f"{name}{i + 1}" for name in halves for i in range(L // K)]


def causal() -> Figure:
  made, (train, decode) = figure(5.5, 2.8, L, L)
  whole = ([0], ["query"]), ([0], ["key"])
  _panel(train, masks.Causal(), (L, L), L, *whole, "training")
  cached = masks.Cached(jnp.array([L - 1]), jnp.array([0]), 1)
  _panel(decode, cached, (1, L), L - 1, ([0], [""]), ([0, L - 1], ["cache", "new"]), "a forward")
  return made


def sbd() -> Figure:
  made, (train, first, later) = figure(9, 3.6, 2 * L, 3 * K, 3 * K)
  both = _blocks("x", "x̂")
  _panel(train, masks.SBDTrain(K), (2 * L, 2 * L), L, both, both, "training", (L,))
  keys = [0, K, 2 * K], ["x1", "x2", "x̂3"]
  rule = masks.Cached(jnp.array([K]), jnp.array([0]), K)
  queries = [0, K], ["x2", "x̂3"]
  _panel(first, rule, (2 * K, 3 * K), 2 * K, queries, keys, "first forward of a block", (K,))
  rule = masks.Cached(jnp.array([2 * K]), jnp.array([0]), 0)
  _panel(later, rule, (K, 3 * K), 2 * K, ([0], ["x̂3"]), keys, "the forwards after it", (2 * K,))
  return made


def verified() -> Figure:
  """A chain of four tokens, blocks of masks after two of its points; a branch beside it."""
  made, (fused, fan) = figure(8, 4.2, 3, 4)
  chain, k, held = 4, 4, 4
  one = lambda after, sizes: masks.DraftTree(
    jnp.array([held]), jnp.array([after]), jnp.full((1, len(after)), -1), chain, sizes
  )
  names = ["text", "c d1 d2 d3", "block"]
  rows = [0, chain], names[1:]
  columns = [0, held, held + chain], names
  rule, total = one([chain - 1], (k,)), chain + k
  _panel(fused, rule, (total, held + total), held + chain, rows, columns, "fused", (held,))
  rule, total = one([1, 3], (k, k)), chain + 2 * k
  rows = [0, chain, chain + k], ["c d1 d2 d3", "after d1", "after d3"]
  columns = [0, *(held + i for i in rows[0])], ["text", *rows[1]]
  title = "fan-out, two points"
  _panel(fan, rule, (total, held + total), held + chain, rows, columns, title, (held,))
  return made


def block_diffusion() -> Figure:
  made, (train, decode) = figure(7, 3.9, 2 * L, 2 * L)
  both, half = _blocks("x", "x̂"), _blocks("x")
  rule = masks.BlockDiffusionTrain(K)
  _panel(train, rule, (2 * L, 2 * L), L, both, both, "training", (L,))
  _panel(decode, masks.BlockCausal(K), (L, L), 2 * K, half, half, "decoding, without a cache")
  return made


def freedave() -> Figure:
  made, (axes,) = figure(4.6, 4.2)
  held, columns, drafts = 4, 4, 3
  rule = masks.Branches(
    jnp.array([held]), jnp.array([held]), jnp.array([16]), branches=drafts, block_size=columns
  )
  edges = [columns * i for i in range(drafts)]
  names = [f"draft {i + 1}" for i in range(drafts)]
  keys = [0, *(held + e for e in edges)], ["text", *names]
  shape = (drafts * columns, held + drafts * columns)
  _panel(axes, rule, shape, held, (edges, names), keys, "three drafts in one forward", (held,))
  return made


def jacobi() -> Figure:
  made, (noisy, clean, decode) = figure(10, 3.8, 2, 2, 1)
  prompt, block, count = 3, 3, 3
  start, m = jnp.array([prompt]), block * count
  total = prompt + 2 * m
  edges = [0, *range(prompt, total, block)]
  names = ["x", *(f"y{i + 1}*" for i in range(count)), *(f"y{i + 1}" for i in range(count))]
  both, strong = (edges, names), (prompt, prompt + m)
  for axes, window, title in ((noisy, None, "noisy context (NC)"), (clean, 1, "clean context")):
    rule = masks.JacobiTrain(start, block, m, window)
    _panel(axes, rule, (total, total), prompt + m, both, both, title, strong)
  rule = masks.Cached(jnp.array([5]), jnp.array([0]), 4)
  keys = [0, 5], ["text", "c y1 y2 y3"]
  _panel(decode, rule, (4, 9), 5, ([0], ["c y1 y2 y3"]), keys, "a forward", (5,))
  return made


def full() -> Figure:
  made, (axes,) = figure(3.4, 3.4)
  _panel(axes, masks.Full(), (L, L), L, ([0], ["place"]), ([0], ["place"]), "every forward")
  return made


def ssmd() -> Figure:
  """The trunk sees everything, the causal blocks what was generated before, in the order sigma."""
  made, (trunk, head) = figure(6.2, 3.2, 1, 1)
  place, order = ([0], ["place"]), ([0], ["order σ"])
  _panel(trunk, masks.Full(), (L, L), L, place, place, "trunk, places in natural order")
  _panel(head, masks.Causal(), (L, L), L, order, order, "causal blocks, in generation order")
  return made


def literals(path: pathlib.Path) -> dict[str, Any]:
  """Module-level names of a Python file that stand for literals."""
  found = {}
  for node in ast.parse(path.read_text()).body:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
      try:
        found[node.targets[0].id] = ast.literal_eval(node.value)
      except ValueError:
        continue
  return found


def layers() -> Figure:
  """The layers of tests/test_architecture.py, the lowest at the bottom; beside them what is beside."""
  table = literals(ROOT / "tests" / "test_architecture.py")
  made, (axes,) = figure(8, 7.5)
  rows = table["LAYERS"]
  for y, names in enumerate(rows):
    axes.add_patch(_box(0, y, 6.4, BLUE if y % 2 else "#56B4E9"))
    axes.text(3.2, y + 0.45, "   ".join(names), ha="center", va="center", color="white", fontsize=9)
  for i, name in enumerate(table["SIDE"]):
    y = 3 + 3 * i
    axes.add_patch(_box(6.9, y, 1.6, ORANGE))
    axes.text(7.7, y + 0.45, name, ha="center", va="center", color="white", fontsize=10)
  axes.set_xlim(-0.1, 8.6)
  axes.set_ylim(-0.2, len(rows) + 0.2)
  axes.set_axis_off()
  axes.set_title(
    "A package imports what is below it, and the orange ones where allowed", fontsize=10
  )
  return made


def _box(x: float, y: float, width: float, colour: str, height: float = 0.9) -> Any:
  from matplotlib.patches import FancyBboxPatch

  style = "round,pad=0,rounding_size=0.12"
  return FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=colour, edgecolor="none")


def _walk(steps: Sequence[tuple[str, str, str]]) -> Figure:
  """Boxes from top to bottom: what happens, where it is written, what goes on to the next."""
  made, (axes,) = figure(8, 0.95 * len(steps))
  for i, (title, place, flows) in enumerate(steps):
    y = 1.4 * (len(steps) - 1 - i)
    axes.add_patch(_box(0, y, 6.2, BLUE, 0.95))
    axes.text(3.1, y + 0.63, title, ha="center", va="center", color="white", fontsize=10)
    axes.text(3.1, y + 0.27, place, ha="center", va="center", color="#DDEEFF", fontsize=8)
    if flows:
      arrow = dict(arrowstyle="->", color=INK, lw=1.2)
      axes.annotate("", (1.0, y - 0.43), (1.0, y - 0.02), arrowprops=arrow)
      axes.text(1.25, y - 0.23, flows, va="center", fontsize=8.5, color=INK)
  axes.set_xlim(-0.1, 6.4)
  axes.set_ylim(-0.1, 1.4 * len(steps) - 0.3)
  axes.set_axis_off()
  return made


def batch_walk() -> Figure:
  return _walk(
    [
      ("documents of a source, tokenized", "data/sources.py, data/tokenizers.py", "token ids"),
      (
        "cut into rows of L tokens",
        "data/rows.py, data/pipeline.py",
        "tokens, weights, positions, segment ids, example id",
      ),
      ("noise, by the key of each example", "corruption.py", "[clean; masked], 2 L tokens"),
      (
        "one forward under the mask of training",
        "losses/sbd.py, masks/training.py, lm.py",
        "hidden states",
      ),
      (
        "logits a chunk at a time, cross-entropy",
        "chunks.py, losses/cross_entropy.py",
        "a loss and a weight, both sums",
      ),
      (
        "sums over microbatches and devices, one division",
        "train/step.py, train/parallel.py",
        "gradients",
      ),
      (
        "update; metrics and checkpoints",
        "train/optim.py, train/trainer.py, train/checkpoints.py",
        "",
      ),
    ]
  )


def block_walk() -> Figure:
  """A real block: what stands in the canvas after each forward, by the shipped model."""
  from sbdjax import decode, load_pretrained, stream

  model = load_pretrained("stories260K-sbd")
  k = 8
  method = decode.SBD(block_size=k, rule=decode.EBEntropy(gamma=0.8))
  *_, last = stream(model, "Once upon a time", method, max_tokens=2 * k)
  tokens, steps = last.result.tokens, last.result.reveal_step
  return _canvas([model.tokenizer.decode([t]) for t in tokens[: 2 * k]], list(steps[: 2 * k]), k)


def _canvas(texts: list[str], steps: list[int], k: int) -> Figure:
  count = max(steps) + 1
  made, (axes,) = figure(10, 0.45 * count + 1.1)
  for forward in range(count):
    block = next(s for s in range(0, len(steps), k) if forward <= max(steps[s : s + k]))
    for i, (text, step) in enumerate(zip(texts, steps, strict=True)):
      open_ = block <= i < block + k
      if step > forward and not open_:
        continue
      colour = ORANGE if step == forward else BLUE if step < forward else GREY
      axes.add_patch(_box(i + 0.04, -forward, 0.92, colour, 0.8))
      shown = text.strip() if step <= forward else "m"
      ink = "white" if step <= forward else "#888888"
      axes.text(i + 0.5, 0.4 - forward, shown, ha="center", va="center", fontsize=8, color=ink)
    axes.text(-0.2, 0.4 - forward, f"forward {forward + 1}", ha="right", va="center", fontsize=9)
  axes.axvline(k, color=INK, lw=0.8, ls=":")
  axes.set_xlim(-2, len(texts))
  axes.set_ylim(-count + 0.9, 1.0)
  axes.set_axis_off()
  return made


ALL: dict[str, Callable[[], Figure]] = {
  "mask_causal": causal,
  "mask_sbd": sbd,
  "mask_verified": verified,
  "mask_block_diffusion": block_diffusion,
  "mask_freedave": freedave,
  "mask_jacobi": jacobi,
  "mask_full": full,
  "mask_ssmd": ssmd,
  "layers": layers,
  "batch_walk": batch_walk,
  "block_walk": block_walk,
}


def _newest() -> float:
  sources = [pathlib.Path(__file__), ROOT / "tests" / "test_architecture.py"]
  sources += [
    *(ROOT / "sbdjax" / "masks").glob("*.py"),
    *(ROOT / "sbdjax" / "decode").rglob("*.py"),
  ]
  return max(path.stat().st_mtime for path in sources)


def write(folder: pathlib.Path) -> None:
  """Those that are not there, or older than what they are made of."""
  folder.mkdir(parents=True, exist_ok=True)
  newest = _newest()
  for name, draw in ALL.items():
    path = folder / f"{name}.png"
    if not path.exists() or path.stat().st_mtime < newest:
      draw().savefig(path, dpi=150)
