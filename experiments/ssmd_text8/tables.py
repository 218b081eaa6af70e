"""Figures of this folder's page, from its records; `report.py` writes tables.md.

python experiments/ssmd_text8/tables.py
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import pathlib
import sys
from typing import Any

from sbdjax import figures
from sbdjax.bootstrap import Interval
from sbdjax.evals import equal_quality, markdown
from sbdjax.evals.equal_quality import WithError

HERE = pathlib.Path(__file__).resolve().parent
ABLATIONS = {
  "MDM": "MDM", "SSMD": "SSMD", "no_residual": "without output residual",
  "two_causal": "two causal blocks",
}  # fmt: skip
# The setting that the table of ablations shows.
SETTING = {"n_inner": 1, "dtau": 0.083}


@functools.cache
def lines(name: str) -> list[dict[str, Any]]:
  """Records of a file of this folder."""
  return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


def likelihood_curves(name: str) -> dict[str, list[WithError]]:
  """Model -> exact mean NFE, bits per character of its sampler, negated; windows that grow, or steps."""
  found: dict[str, list[WithError]] = {}
  for x in lines(name):
    if "mean_nfe" in x and x.get("dtau", 0.0) < 1:
      point = WithError(x["mean_nfe"], -x["bits_per_character"], x["stderr"] or 0.0)
      found.setdefault(x["label"], []).append(point)
  return {label: sorted(curve) for label, curve in found.items()}


def spelling_curves() -> dict[str, list[WithError]]:
  """The same of spelling accuracy; its error as if each word were drawn by itself."""
  found: dict[str, list[WithError]] = {}
  for x in lines("points.jsonl"):
    if "nfe" in x:
      share = x["spelling"]
      point = WithError(x["nfe"], share, (share * (1 - share) / x["words"]) ** 0.5)
      found.setdefault(x["settings"]["label"], []).append(point)
  return {label: sorted(curve) for label, curve in found.items()}


def _ratios(curves: dict[str, list[WithError]], label: str = "SSMD") -> list[Interval]:
  found = [equal_quality.interval_of_errors(x, curves["MDM"]) for x in curves[label]]
  return [x for x in found if x is not None]


def _ends(found: list[Interval]) -> tuple[float, float]:
  return min(x.value for x in found), max(x.value for x in found)


def at_likelihood(name: str = "likelihood.jsonl", label: str = "SSMD") -> tuple[float, float]:
  """NFE of MDM at a model's likelihoods / its own: the smallest and the largest ratio."""
  return _ends(_ratios(likelihood_curves(name), label))


def at_spelling() -> tuple[float, float]:
  """The same at equal spelling accuracy."""
  return _ends(_ratios(spelling_curves()))


def spelling_above_one() -> tuple[int, int]:
  """Settings whose whole interval, by the standard errors, is above 1, and all that are compared."""
  return _above_one(_ratios(spelling_curves()))


def likelihood_above_one() -> tuple[int, int]:
  """The same at equal likelihood."""
  return _above_one(_ratios(likelihood_curves("likelihood.jsonl")))


def _above_one(found: list[Interval]) -> tuple[int, int]:
  return sum(x.low > 1 for x in found), len(found)


def _shown(x: Interval) -> str:
  """`2.1 [1.4, 3.0]`; a bound that no resample reached is said."""
  low = "less" if x.low == 0 else f"{x.low:.1f}"
  return f"{x.value:.1f} [{low}, {'more' if math.isinf(x.high) else f'{x.high:.1f}'}]"


def bounds() -> str:
  """MDM's NFE / SSMD's at equal quality, with what the standard errors allow."""
  rows = []
  for title, curves in (
    ("words spelled right", spelling_curves()),
    ("likelihood", likelihood_curves("likelihood.jsonl")),
    *(
      (f"likelihood, 1,000 updates, {ABLATIONS[label]}",
       {"MDM": short["MDM"], "SSMD": short[label]})
      for short in [likelihood_curves("ablations/likelihood.jsonl")]
      for label in ("SSMD", "no_residual", "two_causal")
    ),
  ):  # fmt: skip
    for point in curves["SSMD"]:
      found = equal_quality.interval_of_errors(point, curves["MDM"])
      if found is not None:
        rows.append((title, f"{point.cost:.1f}", _shown(found)))
  return markdown.table(("at equal", "NFE of SSMD", "MDM's NFE / its own"), rows)


def windows() -> dict[str, list[dict[str, Any]]]:
  """Kind of window -> records of one verification per draft, by their NFE."""
  found: dict[str, list[dict[str, Any]]] = {}
  for x in lines("windows.jsonl"):
    if x.get("n_inner") == 1 and x.get("dtau", 0.0) < 1:
      found.setdefault(x["window"], []).append(x)
  return {kind: sorted(xs, key=lambda x: x["mean_nfe"]) for kind, xs in found.items()}


def linear_against_cosine() -> tuple[float, float]:
  """NFE of linear windows / NFE of cosine ones at equal likelihood: the smallest and the largest."""
  curves = {
    kind: [(x["mean_nfe"], -x["bits_per_character"]) for x in xs] for kind, xs in windows().items()
  }
  found = equal_quality.compare(curves, ["linear"])
  return min(x.ratio for x in found), max(x.ratio for x in found)


def draw_windows(path: pathlib.Path) -> None:
  """The samplers' exact likelihood against their exact NFE, a curve for each kind of window."""
  with figures.drawing(path, figures.COLUMN, 2.6) as figure:
    axes = figure.add_subplot()
    for number, (kind, xs) in enumerate(windows().items()):
      axes.errorbar(
        [x["mean_nfe"] for x in xs], [x["bits_per_character"] for x in xs],
        yerr=[2 * x["stderr"] for x in xs], elinewidth=0.6, marker=figures.MARKERS[number],
        label=f"{kind} window",
      )  # fmt: skip
    figures.log_axis(axes, "x")
    axes.set(xlabel="NFE (full forwards), exact", ylabel="bits per character")
    figures.legend_below(figure, 2)


def last(label: str, metric: str) -> float:
  """The last value of a curve of the ablations."""
  found = [
    x["value"] for x in lines("ablations/curves.jsonl")
    if x["run"] == label and x["metric"].endswith(metric)
  ]  # fmt: skip
  return found[-1]


def ablations() -> str:
  """Short trainings that differ in one part each."""
  curves = likelihood_curves("ablations/likelihood.jsonl")
  rows: list[tuple[Any, ...]] = []
  for label, name in ABLATIONS.items():
    if label == "MDM":
      rows.append((name, f"{last(label, 'eval/nelbo'):.3f}", *[None] * 6))
      continue
    (at,) = [
      x for x in lines("ablations/likelihood.jsonl")
      if x["label"] == label and {k: x.get(k) for k in SETTING} == SETTING
    ]  # fmt: skip
    (sampled,) = [
      x for x in lines("ablations/points.jsonl")
      if x["settings"]["label"] == label
      and {k: x["settings"]["decoder"].get(k) for k in SETTING} == SETTING
    ]  # fmt: skip
    bits, cost = at["bits_per_character"], at["mean_nfe"]
    other = equal_quality.cost_at([x[:2] for x in curves["MDM"]], -bits)
    rows.append(
      (
        name,
        f"{last(label, 'eval/draft_nelbo'):.3f}",
        f"{last(label, 'eval/target_nelbo'):.3f}",
        f"{sampled['acceptance']:.3f}",
        f"{bits:.3f}",
        f"{cost:.1f}",
        f"{other:.1f}",
        "{:.1f} to {:.1f}".format(*at_likelihood("ablations/likelihood.jsonl", label)),
      )
    )
  head = (
    "1,000 updates", "draft, bits", "target, bits", "accepted, N = 1, Δτ = 0.083",
    "bits per character there", "NFE there", "NFE MDM needs for that",
    "MDM's NFE / its own, all settings",
  )  # fmt: skip
  return markdown.table(head, rows)


def sdtt() -> str:
  """Self-distillation through time, by steps: how its samples are spelt, and what its sampler makes of text."""
  sampled = {
    (x["settings"]["label"], x["settings"]["decoder"]["steps"]): x
    for x in lines("sdtt/points.jsonl") if "steps" in x["settings"].get("decoder", {})
  }  # fmt: skip
  bits = {
    (x["label"], x["steps"]): x["bits_per_character"]
    for x in lines("sdtt/likelihood.jsonl") if "steps" in x
  }  # fmt: skip
  rows = [
    (
      "MDM" if label == "MDM" else f"SDTT, round {label[-1]}",
      steps,
      f"{x['nfe']:.1f}",
      f"{x['spelling']:.3f}",
      f"{x['entropy']:.3f}",
      f"{bits[label, steps]:.3f}",
    )
    for (label, steps), x in sampled.items()
  ]
  head = (
    "model",
    "steps",
    "NFE",
    "words spelled right",
    "entropy",
    "bits per character of the sampler",
  )
  return markdown.table(head, rows)


def main(argv: list[str] | None = None) -> int:
  argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(argv)
  print(ablations())
  return 0


if __name__ == "__main__":
  sys.exit(main())
