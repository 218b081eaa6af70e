"""Tables and the figure of this experiment, from the recorded points.

  python experiments/jacobi_stories260k/tables.py --points=experiments/jacobi_stories260k

Reads methods.jsonl, ablation.jsonl and blocks.jsonl there, those that are there; prints Markdown
and draws blocks.png.
"""

import argparse
import json
import pathlib
import sys

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sbdjax.data.files import write_atomically


def read(path: pathlib.Path) -> list[dict]:
  return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


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
  lines = [
    "| model | decoding | n | tokens per forward | tokens/s | speed-up | query tokens per forward "
    "| judge NLL | repeats |",
    "|---|---|---|---|---|---|---|---|---|",
  ]
  for r in rows:
    block = r["settings"]["decoder"].get("block_size", "")
    lines.append(
      f"| {r['settings']['sweep']['label']} | {way(r)} | {block} | {r['tpf']:.2f} "
      f"| {r['tokens_per_second']:,.0f} | {r['tokens_per_second'] / rows[0]['tokens_per_second']:.2f} "
      f"| {r['query_tokens'] / r['nfe']:.1f} | {r['judge_nll']:.3f} | {r['repetition']:.3f} |"
    )
  return "\n".join(lines)


def ablation(rows: list[dict]) -> str:
  """Tables 4 and 5: forwards a token, as the paper has it, and its inverse."""
  lines = ["| training | forwards a token | tokens per forward | judge NLL |", "|---|---|---|---|"]
  lines += [
    f"| {r['settings']['sweep']['label']} | {1 / r['tpf']:.3f} | {r['tpf']:.2f} "
    f"| {r['judge_nll']:.3f} |"
    for r in rows
  ]
  return "\n".join(lines)


def draw(rows: list[dict], path: pathlib.Path):
  """Figure 5b: tokens per forward against block size, a curve each way to decode."""
  figure = Figure(figsize=(6, 4), layout="constrained")
  axes = figure.add_subplot()
  curves: dict[str, list[tuple[int, float]]] = {}
  for r in rows:
    curves.setdefault(way(r), []).append((r["settings"]["decoder"]["block_size"], r["tpf"]))
  for name, points in curves.items():
    axes.plot(*zip(*sorted(points), strict=True), "o-", label=name)
  sizes = sorted({k for points in curves.values() for k, _ in points})
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
