"""The picture and the tables of the text8 experiment, from its recorded lines alone.

  python experiments/ssmd_text8/report.py --folder=experiments/ssmd_text8

Reads curves.jsonl (experiments/curves.py), points.jsonl (sample.py) and, where they are,
likelihood.jsonl; writes figure3.png and tables.md. Figure 3 of arXiv:2510.03929 is the losses and
the spelling accuracy against NFE; here the accuracy against seconds a sample stands beside them.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
_LOSSES = {
  "draft_loss": "draft",
  "draft_nelbo": "draft",
  "target_loss": "target",
  "target_nelbo": "target",
  "nelbo": "masked diffusion",
}


def read(path: pathlib.Path) -> list[dict]:
  return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def grouped(points: list[dict]) -> dict[str, list[dict]]:
  """Points of each model, by NFE."""
  out: dict[str, list[dict]] = {}
  for point in points:
    if "nfe" in point:
      out.setdefault(point["settings"]["label"], []).append(point)
  return {name: sorted(group, key=lambda p: p["nfe"]) for name, group in out.items()}


def short(point: dict) -> str:
  """`N=2, Δτ=0.083` or `24 steps`."""
  decoder = point["settings"]["decoder"]
  if decoder["name"] == "ssmd":
    return f"N={decoder['n_inner']}, Δτ={decoder['dtau']:g}"
  return f"{decoder['steps']} steps"


def at_spelling(group: list[dict], accuracy: float, field: str) -> float | None:
  """`field` where the curve first reaches `accuracy`, linear between points; None: it never does.

  Not extrapolated: a curve that is better from its first point on gives None too.
  """
  for a, b in zip(group, group[1:], strict=False):
    low, high = a["spelling"], b["spelling"]
    if low < accuracy <= high:
      return a[field] + (accuracy - low) / (high - low) * (b[field] - a[field])
  return None


def savings(baseline: list[dict], group: list[dict]) -> list[tuple[float, float, float]]:
  """(spelling, NFE of the group's point, NFE the baseline needs for it) where both are known."""
  found = [(p["spelling"], p["nfe"], at_spelling(baseline, p["spelling"], "nfe")) for p in group]
  return [entry for entry in found if entry[2] is not None]


def draw(curves: list[dict], groups: dict[str, list[dict]], ceiling: float | None, path):
  figure, (losses, by_nfe, by_time) = plt.subplots(1, 3, figsize=(15, 4.3), layout="constrained")
  names = dict.fromkeys([*groups, *(c["run"] for c in curves)])
  colour = dict(zip(names, _COLOURS * len(names), strict=False))
  lines: dict[tuple[str, str], list] = {}
  for c in curves:
    lines.setdefault((c["run"], c["metric"].rpartition("/")[2]), []).append((c["step"], c["value"]))
  for (run, metric), values in lines.items():
    style = "--" if metric.startswith("draft") else "-"
    label = f"{run}: {_LOSSES.get(metric, metric)}"
    losses.plot(*zip(*values, strict=True), style, color=colour[run], label=label)
  losses.set_xlabel("training step")
  losses.set_ylabel(curves[0]["unit"] if curves else "loss")
  for axis, field in ((by_nfe, "nfe"), (by_time, "seconds_per_sample")):
    for name, group in groups.items():
      ys = [p["spelling"] for p in group]
      axis.plot([p[field] for p in group], ys, "o-", color=colour[name], label=name)
      if field == "nfe" and group[0]["settings"]["decoder"]["name"] == "ssmd":
        for i, p in enumerate(group):
          at = (4, -9) if i % 2 else (-6, 7)  # neighbours' labels go to different sides
          axis.annotate(short(p), (p[field], p["spelling"]), fontsize=7, xytext=at,
                        textcoords="offset points", color=colour[name])  # fmt: skip
    if ceiling is not None:
      axis.axhline(ceiling, color="grey", linestyle=":", label="held-out text")
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    axis.set_ylabel("spelling accuracy")
  by_nfe.set_xlabel("NFE (full forwards)")
  some = next(iter(groups.values()))[0]
  by_time.set_xlabel(f"seconds a sample (batch {some['settings']['batch_size']}, {some['device']})")
  for axis in (losses, by_nfe, by_time):
    axis.grid(alpha=0.3)
    if axis.has_data():
      axis.legend(fontsize=8)
  figure.savefig(path, dpi=130)


def cell(value, digits: int) -> str:
  return "" if value is None else f"{value:.{digits}f}"


def table(groups: dict[str, list[dict]], reference: dict | None) -> list[str]:
  """The analogue of Table 1, one row a point."""
  any_point = next(iter(groups.values()))[0]
  judge = any_point["settings"]["judge"]
  note = f"Judge: {judge}." if judge else "No judge was given."
  lines = [
    f"{any_point['settings']['samples']} samples of {any_point['settings']['length']} characters; "
    f"words of {any_point['settings']['corpus']}. {note} Acceptance: of the drafts looked at.",
    "",
    "| model | setting | NFE | spelling | entropy | judge NLL | acceptance | ms a sample |",
    "|---|---|---|---|---|---|---|---|",
  ]
  for name, group in groups.items():
    for p in group:
      lines.append(
        f"| {name} | {short(p)} | {p['nfe']:.1f} | {p['spelling']:.3f} | {p['entropy']:.3f} | "
        f"{cell(p.get('judge_nll'), 3)} | {cell(p.get('acceptance'), 3)} | "
        f"{1000 * p['seconds_per_sample']:.1f} |"
      )
  if reference:
    lines.append(
      f"| held-out text | | | {reference['spelling']:.3f} | {reference['entropy']:.3f} | "
      f"{cell(reference.get('judge_nll'), 3)} | | |"
    )
  return lines


def savings_table(groups: dict[str, list[dict]]) -> list[str]:
  """Every self-speculative point against every masked-diffusion curve."""
  kind = lambda name: groups[name][0]["settings"]["decoder"]["name"]
  lines = ["| model | baseline | spelling | NFE | NFE of the baseline there | ratio |",
           "|---|---|---|---|---|---|"]  # fmt: skip
  for name in groups:
    for base in groups:
      if kind(name) == "ssmd" and kind(base) == "mdm":
        for accuracy, nfe, other in savings(groups[base], groups[name]):
          lines.append(
            f"| {name} | {base} | {accuracy:.3f} | {nfe:.1f} | {other:.1f} | {other / nfe:.2f} |"
          )
  return lines if len(lines) > 2 else ["No spelling accuracy is reached by both."]


def likelihood_table(lines: list[dict]) -> list[str]:
  out = ["| model | decoder | bits per character | estimator | texts × samples | mean NFE, exact |",
         "|---|---|---|---|---|---|"]  # fmt: skip
  for line in lines:
    loops = line.get("n_inner")
    setting = line["decoder"]
    if loops is not None:
      setting += f", N={loops or '∞'}, Δτ={line['dtau']:g}"
    error = "" if line["stderr"] is None else f" ± {line['stderr']:.4f}"
    out.append(
      f"| {line['label']} | {setting} | {line['bits_per_character']:.4f}{error} | "
      f"{line['estimator']} | {line['texts']} × {line['samples_per_text']} | "
      f"{cell(line.get('mean_nfe'), 2)} |"
    )
  return out


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--folder", required=True, help="where the recorded lines are")
  folder = pathlib.Path(parser.parse_args(argv).folder)
  points = read(folder / "points.jsonl")
  groups = grouped(points)
  if not groups:
    parser.error(f"no measured points in {folder / 'points.jsonl'}: run sample.py first")
  reference = next((p for p in points if "nfe" not in p), None)
  curves, likelihoods = read(folder / "curves.jsonl"), read(folder / "likelihood.jsonl")
  draw(curves, groups, reference and reference["spelling"], folder / "figure3.png")
  lines = ["# Samples", "", *table(groups, reference), ""]
  lines += ["# NFE at equal spelling accuracy", "", *savings_table(groups), ""]
  if likelihoods:
    lines += ["# Likelihood", "", *likelihood_table(likelihoods), ""]
  (folder / "tables.md").write_text("\n".join(lines))
  ratios = [b / a for n in groups for m in groups for _, a, b in savings(groups[m], groups[n])
            if groups[n][0]["settings"]["decoder"]["name"] == "ssmd"
            and groups[m][0]["settings"]["decoder"]["name"] == "mdm"]  # fmt: skip
  if ratios:
    print(f"NFE of masked diffusion / NFE at equal spelling: {np.min(ratios):.2f} to "
          f"{np.max(ratios):.2f}, geometric mean {math.exp(np.mean(np.log(ratios))):.2f}")  # fmt: skip
  print(f"wrote {folder / 'figure3.png'} and {folder / 'tables.md'}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
