"""The Pareto fronts of a sweep as a picture."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sbdjax.data.files import write_atomically
from sbdjax.evals import paired, pareto
from sbdjax.evals.bootstrap import Interval
from sbdjax.evals.pareto import Gain, Row

_POINT, _FRONT = "#5b6675", "#0072B2"


def draw(rows: Sequence[Row], labels: Sequence[str], path: pathlib.Path) -> None:
  """Judge NLL above the reference against tokens per forward, and against tokens/s where timed.

  Points of the front are joined and labelled; bars are 95 % intervals over prompts.

  Args:
    rows: of a sweep.
    labels: of each, for the front.
    path: PNG to write, whole or not at all.
  """
  panels: list[tuple[Gain, str]] = [(pareto.by_forwards, "tokens per forward, reference = 1")]
  if all("speed" in row for row in rows):
    panels.append((pareto.by_clock, f"tokens per second, reference = 1 ({rows[0]['device']})"))
  figure = Figure(figsize=(6.2 * len(panels), 5), layout="constrained", dpi=110)
  FigureCanvasAgg(figure)
  for axes, (gain, label) in zip(
    figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
  ):
    _panel(axes, rows, labels, gain)
    axes.set_xlabel(label, fontsize=11)
    axes.set_ylabel("judge NLL above the reference, %\nbetter text is lower", fontsize=11)
  figure.suptitle(
    f"{rows[0]['prompts']} prompts; the line joins the points that none beats in both"
  )
  write_atomically(path, lambda file: figure.savefig(file, format="png"))


def _panel(axes: Any, rows: Sequence[Row], labels: Sequence[str], gain: Gain) -> None:
  references = [paired.reference_of(row, rows) for row in rows]
  gains = [gain(row, of) or Interval(1.0) for row, of in zip(rows, references, strict=True)]
  losses = [pareto.loss_of(row, of) for row, of in zip(rows, references, strict=True)]
  on = pareto.front_of(rows, gain)
  for x, y, is_on in zip(gains, losses, on, strict=True):
    colour = _FRONT if is_on else _POINT
    axes.errorbar(
      x.value, 100 * y.value, xerr=_bars(x, 1), yerr=_bars(y, 100), fmt="o" if is_on else ".",
      color=colour, elinewidth=1, capsize=2, alpha=1 if is_on else 0.6,
    )  # fmt: skip
  joined = sorted(
    (x.value, 100 * y.value, i) for i, (x, y) in enumerate(zip(gains, losses, strict=True)) if on[i]
  )
  axes.plot([x for x, _, _ in joined], [y for _, y, _ in joined], color=_FRONT, linewidth=1.5)
  for number, (x, y, i) in enumerate(joined):
    above = number % 2 == 0  # neighbours' labels go to different sides
    axes.annotate(
      labels[i], (x, y), xytext=(-6, 8) if above else (8, -12), textcoords="offset points",
      ha="right" if above else "left", fontsize=8, color=_FRONT,
    )  # fmt: skip
  axes.axhline(0, color=_POINT, linewidth=0.8, linestyle="--")
  axes.grid(alpha=0.25)
  axes.spines[["top", "right"]].set_visible(False)
  axes.margins(x=0.15, y=0.15)


def _bars(found: Interval, scale: float) -> list[list[float]] | None:
  """Lengths below and above the value; None without bounds."""
  if found.low is None or found.high is None:
    return None
  low, high = max(0.0, found.value - found.low), max(0.0, found.high - found.value)
  return [[scale * low], [scale * high]]
