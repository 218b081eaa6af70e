"""Draws the recorded lines: python experiments/benchmarks/plots.py (writes speed_cpu.png beside itself)."""

from __future__ import annotations

import json
import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator

HERE = pathlib.Path(__file__).parent


def read(name: str) -> list[dict]:
  """Records of a file of JSON lines."""
  return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


def whiskers(rows: list[dict]) -> list[list[float]]:
  """Distances from the median to the fastest and the slowest, in milliseconds."""
  return [
    [1e3 * (r["seconds"] - r["low"]) for r in rows],
    [1e3 * (r["high"] - r["seconds"]) for r in rows],
  ]


def curve(axes, rows: list[dict], x: str, label: str, **style) -> None:
  """Medians against the field `x`, with the range of all measurements."""
  rows = sorted(rows, key=lambda r: r[x])
  at, ms = [r[x] for r in rows], [1e3 * r["seconds"] for r in rows]
  axes.errorbar(at, ms, yerr=whiskers(rows), marker="o", ms=4, capsize=3, label=label, **style)


def training(axes) -> None:
  (record,) = read("training_cpu.jsonl")
  for vocab_size in sorted({r["vocab_size"] for r in record["rows"]}):
    rows = [r for r in record["rows"] if r["vocab_size"] == vocab_size]
    curve(axes, rows, "length", f"V = {vocab_size:,}")
  shape = record["model"]
  axes.set(title=f"SBD update, {shape['num_layers']} layers of {shape['d_model']}")


def attention(axes) -> None:
  (record,) = read("attention_cpu.jsonl")
  styles = {"forward": "--", "forward+backward": "-"}
  names = list(dict.fromkeys(r["backend"] for r in record["training"]["rows"]))
  for number, name in enumerate(names):
    for work, style in styles.items():
      rows = [r for r in record["training"]["rows"] if (r["backend"], r["work"]) == (name, work)]
      curve(axes, rows, "length", f"{name}, {work}", color=f"C{number}", ls=style)
  axes.set(title="attention alone, SBD mask over 2 L tokens")


def decoding(axes) -> None:
  (record,) = read("decoding_sizes_cpu.jsonl")
  rows = record["rows"]
  for name in dict.fromkeys(r["decoder"] for r in rows):
    of_name = sorted((r for r in rows if r["decoder"] == name), key=lambda r: r["batch_size"])
    speeds = [r["tokens_per_second"] for r in of_name]
    ends = [
      [r["tokens_per_second"] - r["low"] for r in of_name],
      [r["high"] - r["tokens_per_second"] for r in of_name],
    ]
    at = [r["batch_size"] for r in of_name]
    label = name.split(" rule")[0]
    axes.errorbar(at, speeds, yerr=ends, marker="o", ms=4, capsize=3, label=label)
  axes.set(title="decoding, stories260K-sbd", xlabel="batch size", ylabel="tokens/s")


def compiling(axes) -> None:
  rows = [row for record in read("compile_cpu.jsonl") for row in record["rows"]]
  names = list(dict.fromkeys(row["program"] for row in rows))
  for number, depth in enumerate(sorted({row["num_layers"] for row in rows})):
    of_depth = [row for row in rows if row["num_layers"] == depth]
    at = [names.index(row["program"]) + 0.4 * number for row in of_depth]
    seconds = [row["cpu_seconds"] for row in of_depth]
    axes.barh(at, seconds, height=0.38, label=f"{depth} layers")
  axes.axvline(20, color="black", lw=0.8, ls=":")
  axes.set_yticks([i + 0.2 for i in range(len(names))], names, fontsize=8)
  axes.invert_yaxis()
  axes.set(title="compiling for an 8B model", xlabel="processor seconds (aim: 20)")
  axes.legend(fontsize=8, loc="lower right")


def main() -> None:
  figure, panels = plt.subplots(2, 2, figsize=(10.5, 7.6), layout="constrained")
  for axes, draw in zip(panels.flat, (training, attention, decoding, compiling), strict=True):
    draw(axes)
    if draw is compiling:
      continue
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    ticks = sorted({int(x) for line in axes.get_lines() for x in line.get_xdata()})
    axes.set_xticks(ticks)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.minorticks_off()
    if draw is not decoding:
      axes.set(xlabel="L, tokens of a text", ylabel="ms, median and range")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False)
  figure.suptitle("two shared CPU cores, float32", fontsize=10)
  figure.savefig(HERE / "speed_cpu.png", dpi=120)


if __name__ == "__main__":
  main()
