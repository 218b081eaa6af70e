"""The picture of a sweep: quality and repetition against forwards, and against the clock."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from sbdjax.data.files import write_atomically
from sbdjax.evals import paired
from sbdjax.evals.bootstrap import Interval

# Settings that move along a curve, and how they are written beside its points; of several, the
# first one.
_ALONG = {
  "gamma": "γ",
  "f": "f",
  "tau": "τ",
  "tokens_per_step": "n",
  "draft_steps": "d",
  "threshold": "τ",
  "dtau": "Δτ",
  "steps": "T",
}
# Okabe and Ito's palette: told apart without colour vision, and in grey.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vPX"


def annotation(decoder: dict[str, Any]) -> str:
  """The setting that tells the points of a curve apart, e.g. "γ=0.1"; "" where there is none."""
  name = _moving(decoder)
  return f"{_ALONG[name]}={decoder[name]:g}" if name else ""


def _moving(decoder: dict[str, Any]) -> str:
  return next((name for name in _ALONG if name in decoder), "")


def _along(decoder: dict[str, Any]) -> float:
  return decoder.get(_moving(decoder), 0.0)


def _curve_settings(row: dict[str, Any]) -> dict[str, Any]:
  """What all points of one curve share."""
  sweep, decoder = row["settings"]["sweep"], row["settings"]["decoder"]
  fixed = {k: v for k, v in decoder.items() if k != _moving(decoder)}
  return {"model": sweep["label"], **fixed, "batch": row["batch_size"]}


def curves(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
  """Points with one varying setting, grouped by all the others, under a legend text.

  The text names the settings in which the groups differ. Groups of a method without such a
  setting (AR) have one point.
  """
  groups: dict[str, list[dict[str, Any]]] = {}
  for row in rows:
    groups.setdefault(json.dumps(_curve_settings(row), sort_keys=True), []).append(row)
  settings = {key: _curve_settings(group[0]) for key, group in groups.items()}
  names = dict.fromkeys(name for s in settings.values() for name in s if name != "name")
  differ = [n for n in names if len({str(s[n]) for s in settings.values() if n in s}) > 1]
  labelled = {}
  for key, group in groups.items():
    s = settings[key]
    extra = [str(s[n]) if n in ("model", "rule") else f"{n}={s[n]}" for n in differ if n in s]
    labelled[" ".join([s["name"].upper(), *([", ".join(extra)] if extra else [])])] = group
  return labelled


def _is_reference(group: Sequence[dict[str, Any]]) -> bool:
  return group[0]["settings"]["decoder"]["name"] == "ar"


def differing(rows: Sequence[dict[str, Any]]) -> list[str]:
  """Settings of decoders in which points differ, but for those that move along a curve."""
  decoders = [row["settings"]["decoder"] for row in rows]
  names = dict.fromkeys(name for decoder in decoders for name in decoder)
  several = lambda name: len({str(d[name]) for d in decoders if name in d}) > 1
  return [name for name in names if name != "name" and name not in _ALONG and several(name)]


def _styles(groups: dict[str, list[dict[str, Any]]]) -> dict[str, tuple[str, str]]:
  """(colour, marker) of each curve; a reference has the colour of its model's only curve."""
  model = lambda label: _curve_settings(groups[label][0])["model"]
  moving = [label for label in groups if not _is_reference(groups[label])]
  styles = {
    label: (_COLOURS[i % len(_COLOURS)], _MARKERS[(i + i // len(_COLOURS)) % len(_MARKERS)])
    for i, label in enumerate(moving)
  }
  for label in groups:
    if label not in styles:
      same = [other for other in moving if model(other) == model(label)]
      styles[label] = (styles[same[0]][0] if len(same) == 1 else "black", "*")
  return styles


def _panel(
  axes: Any,
  groups: Mapping[str, Sequence[dict[str, Any]]],
  styles: Mapping[str, tuple[str, str]],
  x_of: Callable[[dict[str, Any]], Interval],
  y_of: Callable[[dict[str, Any]], Interval],
) -> None:
  """One curve a group, with bars from low to high."""
  for label, group in groups.items():
    colour, marker = styles[label]
    points = sorted(group, key=lambda row: _along(row["settings"]["decoder"]))
    xs, ys = [x_of(row) for row in points], [y_of(row) for row in points]
    place = [x.value for x in xs], [y.value for y in ys]
    bars = dict(xerr=_bars(xs), yerr=_bars(ys), elinewidth=1, capsize=2, color=colour)
    if _is_reference(group):
      for y in place[1]:
        axes.axhline(y, color=colour, linestyle="--", linewidth=1.2, alpha=0.7, zorder=1)
      axes.errorbar(*place, fmt=marker, markersize=12, label=label, zorder=3, **bars)
      continue
    axes.errorbar(*place, fmt="-", marker=marker, label=label, linewidth=2, markersize=6, **bars)
    for i, (x, y, row) in enumerate(zip(*place, points, strict=True)):
      below = i % 2 == 0  # neighbours' labels go to different sides
      axes.annotate(
        annotation(row["settings"]["decoder"]),
        (x, y),
        xytext=(6, -12) if below else (-6, 7),
        ha="left" if below else "right",
        textcoords="offset points",
        fontsize=9,
        color=colour,
        path_effects=[withStroke(linewidth=2.5, foreground="white")],
      )
  axes.grid(alpha=0.25)
  axes.spines[["top", "right"]].set_visible(False)
  axes.tick_params(labelsize=10)
  axes.margins(x=0.12, y=0.12)


def _bars(found: Sequence[Interval]) -> list[list[float]]:
  """Lengths below and above the values; none where there are no bounds."""
  low = [0.0 if x.low is None else max(0.0, x.value - x.low) for x in found]
  high = [0.0 if x.high is None else max(0.0, x.high - x.value) for x in found]
  return [low, high]


def draw_sweep(rows: Sequence[dict[str, Any]], path: pathlib.Path) -> None:
  """Judge NLL and repetition against tokens per forward, and NLL against tokens/s where it was timed.

  Bars are 95 % intervals over prompts; speeds are those of AR decoding in the same turns.

  Args:
    rows: records of the sweep verb; those of several timing runs are drawn without speeds.
    path: PNG to write, whole or not at all.
  """
  speeds = [paired.speed_ratio(row, paired.reference_of(row, rows)) for row in rows]
  found = {id(row): x for row, x in zip(rows, speeds, strict=True) if x is not None}
  timed = len(found) == len(rows)
  panels = 3 if timed else 2
  figure = Figure(figsize=(5.8 * panels, 5), layout="constrained", dpi=110)
  FigureCanvasAgg(figure)
  all_axes = figure.subplots(1, panels)
  groups = curves(rows)
  styles = _styles(groups)
  forwards = "NFE speed-up (tokens per forward; AR = 1)"
  first = rows[0]
  nll = f"NLL under {first['settings']['sweep']['judge']} (nats / token)\nbetter text is lower"
  drawn = [
    (paired.tokens_per_forward, paired.judge_nll, forwards, nll),
    (paired.tokens_per_forward, paired.repetition, forwards, "share of 4-grams seen before"),
    (
      lambda row: found[id(row)],
      paired.judge_nll,
      f"tokens/s, AR = 1 (batch {first['batch_size']}, {first['device']})",
      nll,
    ),
  ]
  for axes, (x_of, y_of, x_label, y_label) in zip(all_axes, drawn, strict=False):
    _panel(axes, groups, styles, x_of, y_of)
    axes.set_xlabel(x_label, fontsize=11)
    axes.set_ylabel(y_label, fontsize=11)
  handles, labels = all_axes[0].get_legend_handles_labels()
  columns = 1 if len(labels) == 1 else panels
  figure.legend(
    handles, labels, fontsize=9, frameon=False, loc="outside lower center", ncols=columns
  )
  figure.suptitle(
    f"{first['prompts']} prompts, 95 % intervals over them; dashed lines are AR decoding",
    fontsize=12,
  )
  write_atomically(path, lambda file: figure.savefig(file, format="png"))
