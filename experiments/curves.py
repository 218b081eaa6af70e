"""Loss curves of several runs in one picture, and the points of the picture as JSON lines.

  python experiments/curves.py --out=curves.png --record=curves.jsonl \
    --metrics=eval/ntp_loss,eval/masked_loss NTP=runs/ntp SBD=runs/sbd

With `--together` all metrics share one panel, for runs that have different ones. With `--bits`
losses are divided by ln 2: bits per character where a token is a character.
"""

import argparse
import json
import math
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def read(workdir: pathlib.Path, metric: str) -> list[tuple[int, float]]:
  """(step, value) pairs of one metric of a run, in order."""
  points = []
  for line in (workdir / "metrics.jsonl").read_text().splitlines():
    record = json.loads(line)
    if metric in record:
      points.append((record["step"], record[metric]))
  return points


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("runs", nargs="+", help="NAME=WORKDIR")
  parser.add_argument("--metrics", default="eval/ntp_loss,eval/masked_loss")
  parser.add_argument("--together", action="store_true", help="one panel for all metrics")
  parser.add_argument("--bits", action="store_true", help="bits instead of nats")
  parser.add_argument("--out", required=True, help="the PNG")
  parser.add_argument("--record", required=True, help="the JSON lines")
  args = parser.parse_args(argv)

  unit, scale = ("bits per character", 1 / math.log(2)) if args.bits else ("nats per token", 1.0)
  metrics = args.metrics.split(",")
  panels = 1 if args.together else len(metrics)
  figure, axes = plt.subplots(1, panels, figsize=(5.2 * panels, 3.8), squeeze=False)
  lines = []
  for axis, metric in zip([*axes[0]] * (len(metrics) // panels), metrics, strict=True):
    for run in args.runs:
      name, _, workdir = run.partition("=")
      points = read(pathlib.Path(workdir), metric)
      if not points:
        continue
      label = f"{name}: {metric.split('/')[-1]}" if args.together else name
      axis.plot(
        *zip(*((s, v * scale) for s, v in points), strict=True), marker="o", ms=3, label=label
      )
      lines += [
        dict(run=name, metric=metric, step=s, value=v * scale, unit=unit) for s, v in points
      ]
    axis.set_xlabel("training step")
    axis.set_ylabel(unit if args.together else f"{metric} ({unit})")
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
  figure.tight_layout()
  figure.savefig(args.out, dpi=130)
  pathlib.Path(args.record).write_text("".join(json.dumps(line) + "\n" for line in lines))
  print(f"wrote {args.out} and {args.record}: {len(lines)} points")
  return 0


if __name__ == "__main__":
  sys.exit(main())
