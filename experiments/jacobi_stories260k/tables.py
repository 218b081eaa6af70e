"""Tables and the figure of this experiment, from the recorded points.

  python experiments/jacobi_stories260k/tables.py --points=experiments/jacobi_stories260k

Reads methods.jsonl, ablation.jsonl and blocks.jsonl there, those that are there; prints Markdown
and draws blocks.png.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sbdjax.data.files import write_atomically
from sbdjax.evals import paired, report

HERE = pathlib.Path(__file__).resolve().parent


def read(path: pathlib.Path) -> list[dict]:
  """Recorded points; with the speeds of NAME_speeds.jsonl beside NAME.jsonl, where it is there."""
  speeds = path.with_name(f"{path.stem}_speeds.jsonl")
  if not path.exists():
    return []
  return paired.read(path, speeds if speeds.exists() else None)


def way(row: dict) -> str:
  """How a row was decoded, in words."""
  d = row["settings"]["decoder"]
  if d["name"] == "ar":
    return "AR"
  name = {"jacobi": "Jacobi", "jacobi_window": "window", "jacobi_multiblock": "multi-block"}
  eager = " (eager)" if d.get("eager") else ""
  recycled = " + recycling" if d["pool"] != "none" else ""
  return name[d["name"]] + eager + recycled


def methods(rows: list[dict]) -> str:
  """Table 1: the first row is AR decoding of the original model, the unit of the speed-up."""
  head = (
    "model", "decoding", "n", "tokens per forward", "tokens/s", "speed-up",
    "query tokens per forward", "judge NLL", "against the original", "repeats", "distinct-2",
  )  # fmt: skip
  return report.markdown(
    head,
    [
      (
        r["settings"]["sweep"]["label"],
        way(r),
        r["settings"]["decoder"].get("block_size"),
        paired.tokens_per_forward(r).shown(2),
        f"{r['tokens_per_second']:,.0f}" if "tokens_per_second" in r else None,
        speed_up(r, rows[0]),
        f"{r['query_tokens'] / r['nfe']:.1f}",
        paired.judge_nll(r).shown(3),
        report.against(r, rows[0]),
        paired.repetition(r).shown(3),
        f"{r['distinct_2']:.3f}",
      )
      for r in rows
    ],
  )


def speed_up(row: dict, reference: dict) -> str | None:
  """By the clock; without an interval in the record of 0.1.0, a run whose points came one by one."""
  found = paired.speed_ratio(row, reference)
  if found is not None:
    return found.shown(2)
  if "tokens_per_second" not in row:
    return None
  return f"{row['tokens_per_second'] / reference['tokens_per_second']:.2f}"


def ablation(rows: list[dict]) -> str:
  """Tables 4 and 5: forwards a token, as the paper has it, and its inverse."""
  return report.markdown(
    ("training", "forwards a token", "tokens per forward", "judge NLL", "repeats"),
    [
      (
        r["settings"]["sweep"]["label"],
        f"{1 / r['tpf']:.3f}",
        paired.tokens_per_forward(r).shown(2),
        paired.judge_nll(r).shown(3),
        paired.repetition(r).shown(3),
      )
      for r in rows
    ],
  )


def recorded_methods() -> str:
  """Table 1 of the page."""
  return methods(read(HERE / "methods.jsonl"))


def recorded_ablation() -> str:
  """Tables 4 and 5 of the page."""
  return ablation(read(HERE / "ablation.jsonl"))


def point(name: str, label: str, decoding: str, block_size: int = 16) -> dict:
  """A record of NAME.jsonl, by its names in the tables."""
  (found,) = [
    r
    for r in read(HERE / f"{name}.jsonl")
    if (r["settings"]["sweep"]["label"], way(r)) == (label, decoding)
    and r["settings"]["decoder"].get("block_size", block_size) == block_size
  ]
  return found


ORIGINAL, CLLM = "stories260K", "CLLM*"
FORCED = {n: f"Jacobi Forcing, round {n}" for n in (1, 2)}


def tpf(label: str = FORCED[2], decoding: str = "Jacobi", block_size: int = 16) -> float:
  """Tokens per forward; of block sizes other than 16 from blocks.jsonl."""
  name = "methods" if block_size == 16 else "blocks"
  return point(name, label, decoding, block_size)["tpf"]


def nll(label: str) -> float:
  """Judge NLL of a model's text."""
  decoding = "AR" if label == ORIGINAL else "Jacobi"
  return point("methods", label, decoding)["judge_nll"]


def draw_bars(axes, points: list[dict], name: str) -> None:
  """A curve over block sizes, with bars from low to high where they are known."""
  points = sorted(points, key=lambda r: r["settings"]["decoder"]["block_size"])
  found = [paired.tokens_per_forward(r) for r in points]
  low = [0.0 if x.low is None else x.value - x.low for x in found]
  high = [0.0 if x.high is None else x.high - x.value for x in found]
  sizes = [r["settings"]["decoder"]["block_size"] for r in points]
  axes.errorbar(sizes, [x.value for x in found], yerr=[low, high], fmt="o-", capsize=2, label=name)


def draw(rows: list[dict], path: pathlib.Path):
  """Figure 5b: tokens per forward against block size, a curve each way to decode."""
  figure = Figure(figsize=(6, 4), layout="constrained")
  axes = figure.add_subplot()
  curves: dict[str, list[dict]] = {}
  for r in rows:
    original = "" if r["settings"]["sweep"]["label"] != ORIGINAL else ", the original model"
    curves.setdefault(way(r) + original, []).append(r)
  for name, points in curves.items():
    draw_bars(axes, points, name)
  sizes = sorted({r["settings"]["decoder"]["block_size"] for r in rows})
  axes.set_xscale("log", base=2)
  axes.set_xticks(sizes, [str(k) for k in sizes])
  axes.set_xlabel("block size")
  axes.set_ylabel("tokens per forward")
  axes.legend()
  FigureCanvasAgg(figure)
  write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=140))


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--points", required=True, help="folder of the .jsonl files")
  folder = pathlib.Path(parser.parse_args(argv).points)
  found = {name: read(folder / f"{name}.jsonl") for name in ("methods", "ablation", "blocks")}
  if found["methods"]:
    print(methods(found["methods"]), end="\n\n")
  if found["ablation"]:
    print(ablation(found["ablation"]), end="\n\n")
  if found["blocks"]:
    draw(found["blocks"], folder / "blocks.png")
  return 0


if __name__ == "__main__":
  sys.exit(main())
