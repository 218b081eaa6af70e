"""Figures of this folder's page, from its records; `report.py` writes tables.md.

python experiments/ssmd_text8/tables.py
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import sys
from typing import Any

from sbdjax import bootstrap, figures
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


def spelling_error(point: dict[str, Any]) -> float:
  """Standard error of the words spelled right, as if each were drawn by itself."""
  share = point["spelling"]
  return (share * (1 - share) / point["words"]) ** 0.5


def spelled(point: dict[str, Any]) -> Interval:
  """Words spelled right."""
  return bootstrap.normal(point["spelling"], spelling_error(point))


def bits(line: dict[str, Any]) -> Interval:
  """Bits per character of a sampler; its error is over texts."""
  return bootstrap.normal(line["bits_per_character"], line["stderr"])


def sampled(label: str, name: str = "points.jsonl") -> list[dict[str, Any]]:
  """Records of a model's samples, by their NFE."""
  found = [x for x in lines(name) if "nfe" in x and x["settings"]["label"] == label]
  return sorted(found, key=lambda x: x["nfe"])


def held_out() -> dict[str, Any]:
  """The record of held-out text."""
  (found,) = [x for x in lines("points.jsonl") if "nfe" not in x]
  return found


def spelling_curves(name: str = "points.jsonl") -> dict[str, list[WithError]]:
  """Model -> NFE and spelling accuracy with its error."""
  return {
    label: [WithError(x["nfe"], x["spelling"], spelling_error(x)) for x in sampled(label, name)]
    for label in ABLATIONS
  }


def _ratios(curves: dict[str, list[WithError]], label: str = "SSMD") -> list[Interval]:
  found = [equal_quality.interval_of_errors(x, curves["MDM"]) for x in curves[label]]
  return [x for x in found if x is not None]


def _ends(found: list[Interval]) -> tuple[float, float]:
  return min(x.value for x in found), max(x.value for x in found)


def likelihood_ratios(name: str = "likelihood.jsonl", label: str = "SSMD") -> list[Interval]:
  """NFE of MDM at a model's likelihoods / its own, a setting each."""
  return _ratios(likelihood_curves(name), label)


def spelling_ratios() -> list[Interval]:
  """The same at equal spelling accuracy."""
  return _ratios(spelling_curves())


def at_likelihood(name: str = "likelihood.jsonl", label: str = "SSMD") -> tuple[float, float]:
  """The smallest and the largest of `likelihood_ratios`."""
  return _ends(likelihood_ratios(name, label))


def at_spelling() -> tuple[float, float]:
  """The smallest and the largest of `spelling_ratios`."""
  return _ends(spelling_ratios())


def ablations_at_spelling() -> tuple[float, float]:
  """The same after 1,000 updates, of all models that are compared with MDM."""
  curves = spelling_curves("ablations/points.jsonl")
  return _ends([x for label in ABLATIONS if label != "MDM" for x in _ratios(curves, label)])


def spelled_by_ablations() -> tuple[float, float]:
  """The smallest and the largest share of words spelled right after 1,000 updates."""
  found = [x["spelling"] for label in ABLATIONS for x in sampled(label, "ablations/points.jsonl")]
  return min(found), max(found)


def at_judge() -> tuple[float, float]:
  """The same at equal NLL under the judge; its errors were not recorded."""
  curves = {
    label: [(x["nfe"], -x["judge_nll"]) for x in sampled(label)] for label in ("MDM", "SSMD")
  }
  found = [x.ratio for x in equal_quality.compare(curves, ["MDM"])]
  return min(found), max(found)


def not_reached() -> int:
  """Settings of SSMD whose NLL under the judge MDM has at none of its own."""
  best = min(x["judge_nll"] for x in sampled("MDM"))
  return sum(x["judge_nll"] < best for x in sampled("SSMD"))


def times() -> tuple[float, float]:
  """Milliseconds per sample of the fastest setting of SSMD, and MDM's at its spelling accuracy."""
  fastest = min(sampled("SSMD"), key=lambda x: x["seconds_per_sample"])
  curve = sorted((1e3 * x["seconds_per_sample"], x["spelling"]) for x in sampled("MDM"))
  other = equal_quality.cost_at(curve, fastest["spelling"])
  assert other is not None
  return 1e3 * fastest["seconds_per_sample"], other


def accepted() -> tuple[float, float]:
  """The smallest and the largest share of drafts that were accepted, over settings."""
  found = [x["acceptance"] for x in sampled("SSMD")]
  return min(found), max(found)


def spelling_above_one() -> tuple[int, int]:
  """Settings whose whole interval, by the standard errors, is above 1, and all that are compared."""
  return _above_one(spelling_ratios())


def likelihood_above_one() -> tuple[int, int]:
  """The same at equal likelihood."""
  return _above_one(likelihood_ratios())


def _above_one(found: list[Interval]) -> tuple[int, int]:
  return sum(x.low > 1 for x in found), len(found)


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
        rows.append((title, f"{point.cost:.1f}", equal_quality.shown(found, 1)))
  return markdown.table(("at equal", "NFE of SSMD", "MDM's NFE / its own"), rows)


def headline() -> str:
  """What came out, in words."""
  spelling, likelihood = (
    equal_quality.ends_shown(found, 1) for found in (spelling_ratios(), likelihood_ratios())
  )
  return (
    f"**At equal spelling accuracy MDM needs {spelling} times the NFE of SSMD** (the aim was 1.5), at equal exact likelihood "
    f"{likelihood} times ([the intervals](#how-sure-that-is) are wide: *more* is a bound that MDM never reaches)."
  )


def against_ablations() -> str:
  """What came out of the ablations, in words."""
  full, no_residual, two_causal = (
    equal_quality.ends_shown(likelihood_ratios("ablations/likelihood.jsonl", label), 1)
    for label in ("SSMD", "no_residual", "two_causal")
  )
  return (
    f"By exact likelihood MDM needs {full} times the NFE of SSMD, but {no_residual} times that without output residual and "
    f"{two_causal} times that with two causal blocks."
  )


def windows() -> dict[str, list[dict[str, Any]]]:
  """Kind of window -> records of one verification per draft, by their NFE."""
  found: dict[str, list[dict[str, Any]]] = {}
  for x in lines("windows.jsonl"):
    if x.get("n_inner") == 1 and x.get("dtau", 0.0) < 1:
      found.setdefault(x["window"], []).append(x)
  return {kind: sorted(xs, key=lambda x: x["mean_nfe"]) for kind, xs in found.items()}


def linear_against_cosine() -> list[Interval | None]:
  """NFE of linear windows / NFE of cosine ones at equal likelihood, a setting of the cosine window each."""
  curves = {
    kind: [WithError(x["mean_nfe"], -x["bits_per_character"], x["stderr"]) for x in xs]
    for kind, xs in windows().items()
  }
  return [equal_quality.interval_of_errors(x, curves["linear"]) for x in curves["cosine"]]


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


def linear_window_costs() -> str:
  """`linear_against_cosine` in words."""
  ends = equal_quality.ends_shown(linear_against_cosine())
  return (
    f"At equal likelihood it takes {ends} times the NFE of the cosine window (by the standard errors): no difference that these "
    "errors would resolve."
  )


def curve(label: str, metric: str, name: str = "ablations/curves.jsonl") -> list[dict[str, Any]]:
  """Points of a loss curve."""
  return [x for x in lines(name) if x["run"] == label and x["metric"].endswith(metric)]


def last(label: str, metric: str, name: str = "ablations/curves.jsonl") -> float:
  """The last value of a curve."""
  return curve(label, metric, name)[-1]["value"]


def targets_gain(name: str = "curves.jsonl") -> float:
  """Bits per character that SSMD's targets are better than its drafts at the end."""
  return last("SSMD", "draft_nelbo", name) - last("SSMD", "target_nelbo", name)


def positions() -> str:
  """Losses of two runs that differ in how the keys of the causal block turn, at an update of both."""
  names = {"keys turn with their own place": "own",
           "with the next (appendix E.3)": "next, as in the paper"}  # fmt: skip
  update = 175
  rows = []
  for run, name in names.items():
    values = (
      x["value"] for metric in ("draft_loss", "target_loss")
      for x in curve(run, metric, "positions.jsonl") if x["step"] == update
    )  # fmt: skip
    rows.append((name, *(f"{value:.3f}" for value in values)))
  return markdown.table((f"update {update}", "draft, nats per character", "target"), rows)


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
    (drawn,) = [
      x for x in sampled(label, "ablations/points.jsonl")
      if {k: x["settings"]["decoder"].get(k) for k in SETTING} == SETTING
    ]  # fmt: skip
    cost = at["mean_nfe"]
    other = equal_quality.cost_at([x[:2] for x in curves["MDM"]], -at["bits_per_character"])
    rows.append(
      (
        name,
        f"{last(label, 'eval/draft_nelbo'):.3f}",
        f"{last(label, 'eval/target_nelbo'):.3f}",
        f"{drawn['acceptance']:.3f}",
        bits(at).shown(3),
        f"{cost:.1f}",
        f"{other:.1f}",
        equal_quality.ends_shown(likelihood_ratios("ablations/likelihood.jsonl", label), 1),
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
  likely = {
    (x["label"], x["steps"]): bits(x) for x in lines("sdtt/likelihood.jsonl") if "steps" in x
  }
  rows = []
  for x in lines("sdtt/points.jsonl"):
    label, steps = x["settings"]["label"], x["settings"].get("decoder", {}).get("steps")
    if steps is None:
      continue
    rows.append(
      (
        "MDM" if label == "MDM" else f"SDTT, round {label[-1]}",
        steps,
        f"{x['nfe']:.1f}",
        spelled(x).shown(3),
        f"{x['entropy']:.3f}",
        likely[label, steps].shown(3),
      )
    )
  head = (
    "model", "steps", "NFE", "words spelled right", "entropy", "bits per character of the sampler",
  )  # fmt: skip
  return markdown.table(head, rows)


def main(argv: list[str] | None = None) -> int:
  argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(argv)
  print(ablations())
  return 0


if __name__ == "__main__":
  sys.exit(main())
