"""The curves of several runs as a picture."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from sbdjax import figures
from sbdjax.report.runs import Run

_LINES = ("-", "--", "-.", ":")


def draw(runs: Sequence[Run], metrics: Sequence[str], path: pathlib.Path) -> None:
  """One panel a metric, one line a run.

  Args:
    path: PNG to write; the PDF has its name.
  """
  colours = figures.COLOURS
  below = 0.14 * ((len(runs) + 1) // 2)
  with figures.drawing(path, figures.PAGE, 2.4 + below) as figure:
    panels = figure.subplots(1, len(metrics), squeeze=False)[0]
    for axes, metric in zip(panels, metrics, strict=True):
      for i, run in enumerate(runs):
        points = run.curves.get(metric, [])
        axes.plot(
          [step for step, _ in points], [value for _, value in points], label=run.name,
          color=colours[i % len(colours)], linestyle=_LINES[i // len(colours) % len(_LINES)],
        )  # fmt: skip
      axes.set_xlabel("step")
      axes.set_ylabel(metric.replace("_", " "))
    figures.legend_below(figure, 2, panels[0])
