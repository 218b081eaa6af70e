"""Loss curves of several runs in one picture, and the points of the picture as JSON lines.

  python experiments/curves.py --out=curves.png --record=curves.jsonl \
    --metrics=eval/ntp_loss,eval/masked_loss NTP=runs/ntp SBD=runs/sbd

Without runs the recorded points are drawn anew. With `--together` all metrics share one panel, for
runs that have different ones. With `--bits` losses are divided by ln 2: bits per character where a
token is a character. One run of each, so there are no intervals. A point says from which commit it was
read, and from which its run was trained.
"""

import argparse
import json
import math
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from sbdjax import figures
from sbdjax.evals import record
from sbdjax.evals.seed_runs import NAMES

# Runs in words; others are shown as they are named.
RUNS = {
  "SBD w/o NTP term": "SBD without the next-token term",
  "no_residual": "SSMD without output residual",
  "two_causal": "SSMD with two causal blocks",
}


def read(workdir: pathlib.Path, metric: str) -> list[tuple[int, float]]:
  """(step, value) pairs of one metric of a run, in order."""
  lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
  return [(line["step"], line[metric]) for line in lines if metric in line]


def trained(workdir: pathlib.Path) -> dict[str, Any]:
  """The commit that a run was trained from, as its workdir tells."""
  found = json.loads((workdir / "env.json").read_text())
  return {name: found[name] for name in ("git_commit", "git_modified")}


def points_of(runs: Sequence[str], metrics: Sequence[str], bits: bool) -> list[dict[str, Any]]:
  """What is recorded: a point of a curve each, of runs given as NAME=WORKDIR, with its provenance."""
  unit, scale = ("bits per character", 1 / math.log(2)) if bits else ("nats per token", 1.0)
  read_now, found = record.provenance(), []
  for metric in metrics:
    for name, _, folder in (run.partition("=") for run in runs):
      workdir = pathlib.Path(folder)
      about = read_now | {"trained": trained(workdir)}
      found += [
        dict(run=name, metric=metric, step=step, value=scale * value, unit=unit) | about
        for step, value in read(workdir, metric)
      ]
  return found


def draw(lines: Sequence[dict[str, Any]], path: pathlib.Path, together: bool = False) -> None:
  """Recorded points: a panel for each metric, or one for all; a colour for each run.

  Args:
    path: PNG to write; a PDF is written beside it.
    together: one panel, in which the metrics have line styles.
  """
  metrics = list(dict.fromkeys(line["metric"] for line in lines))
  runs = list(dict.fromkeys(line["run"] for line in lines))
  panels = 1 if together else len(metrics)
  labels = len(metrics) * len(runs) if together else len(runs)
  width = figures.PAGE if panels > 1 else figures.COLUMN
  columns = min(labels, 3 if panels > 1 else 1)
  with figures.drawing(path, width, 2.3 + 0.15 * math.ceil(labels / columns)) as figure:
    axes = figure.subplots(1, panels, squeeze=False)[0]
    for m, metric in enumerate(metrics):
      panel = axes[0 if together else m]
      for r, run in enumerate(runs):
        curve = [x for x in lines if (x["run"], x["metric"]) == (run, metric)]
        label = RUNS.get(run, run)
        if together:
          label = f"{label}: {NAMES.get(metric, metric)}"
        style = dict(color=figures.COLOURS[r], marker=figures.MARKERS[r], markersize=2.5)
        style |= dict(linestyle=("-", "--", ":", "-.")[m % 4] if together else "-")
        if curve:
          panel.plot([x["step"] for x in curve], [x["value"] for x in curve], label=label, **style)
      panel.set(xlabel="update", ylabel=lines[0]["unit"])
      panel.xaxis.set_major_formatter("{x:,.0f}")
      if not together:
        panel.set_title(NAMES.get(metric, metric))
    figures.legend_below(figure, columns)


def draw_recorded(path: pathlib.Path, record: str, together: bool = False) -> None:
  """`draw` of a file of recorded points, which is named below experiments/."""
  file = pathlib.Path(__file__).resolve().parent / record
  draw([json.loads(line) for line in file.read_text().splitlines()], path, together)


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("runs", nargs="*", help="NAME=WORKDIR; none: what is recorded")
  parser.add_argument("--metrics", default="eval/ntp_loss,eval/masked_loss")
  parser.add_argument("--together", action="store_true", help="one panel for all metrics")
  parser.add_argument("--bits", action="store_true", help="bits instead of nats")
  parser.add_argument("--out", type=pathlib.Path, help="the PNG; default: none is drawn")
  parser.add_argument("--record", type=pathlib.Path, required=True, help="the JSON lines")
  args = parser.parse_args(argv)
  if args.runs:
    lines = points_of(args.runs, args.metrics.split(","), args.bits)
  else:
    lines = [json.loads(line) for line in args.record.read_text().splitlines()]
  if not lines:
    parser.error(f"none of {args.metrics} is recorded in {' '.join(args.runs) or args.record}")
  if args.runs:
    args.record.write_text("".join(json.dumps(line) + "\n" for line in lines))
  if args.out:
    draw(lines, args.out, args.together)
  print(f"{len(lines)} points: {args.record}" + (f", {args.out}" if args.out else ""))
  return 0


if __name__ == "__main__":
  sys.exit(main())
