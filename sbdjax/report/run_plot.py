"""The curves of several runs as a picture."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sbdjax.report.runs import Run

# Okabe and Ito's palette: told apart without colour vision; the lines differ as well.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINES = ("-", "--", "-.", ":")


def png(runs: Sequence[Run], metrics: Sequence[str]) -> bytes:
  """One panel a metric, one line a run."""
  figure = Figure(figsize=(6.2 * len(metrics), 4.6), layout="constrained", dpi=110)
  FigureCanvasAgg(figure)
  panels = figure.subplots(1, len(metrics), squeeze=False)[0]
  for axes, metric in zip(panels, metrics, strict=True):
    for i, run in enumerate(runs):
      points = run.curves.get(metric)
      if points:
        style = {"color": _COLOURS[i % len(_COLOURS)], "linestyle": _LINES[i // len(_COLOURS) % 4]}
        axes.plot(*zip(*points, strict=True), label=run.name, linewidth=1.8, **style)
    axes.set_xlabel("step")
    axes.set_ylabel(metric.replace("_", " "))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
  handles, labels = panels[0].get_legend_handles_labels()
  figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
  file = io.BytesIO()
  figure.savefig(file, format="png")
  return file.getvalue()
