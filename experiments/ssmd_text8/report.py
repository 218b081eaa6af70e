"""The picture and the tables of the text8 experiment, from its recorded lines alone.

  python experiments/ssmd_text8/report.py --folder=experiments/ssmd_text8

Reads curves.jsonl (experiments/curves.py), points.jsonl (sample.py) and, where they are,
likelihood.jsonl; writes figure3.png and tables.md. Figure 3 of arXiv:2510.03929 is the losses and
the spelling accuracy against NFE; here the accuracy against seconds a sample and the exact
likelihood of the samplers against their NFE stand beside them.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from sbdjax.evals import equal_quality

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


def likelihood_curves(lines: list[dict]) -> dict[str, list[tuple[float, float]]]:
  """(mean NFE, bits per character) of each model's sampler; windows that grow, or steps."""
  out: dict[str, list[tuple[float, float]]] = {}
  for line in lines:
    if "mean_nfe" in line and line.get("dtau", 0.0) < 1:
      out.setdefault(line["label"], []).append((line["mean_nfe"], line["bits_per_character"]))
  return {name: sorted(curve) for name, curve in out.items()}


def draw(curves: list[dict], groups: dict[str, list[dict]], ceiling, likelihoods, path):
  """The four panels; `ceiling` is the spelling accuracy of held-out text, or None."""
  figure, axes = plt.subplots(2, 2, figsize=(12, 8.6), layout="constrained")
  (losses, by_nfe), (by_bits, by_time) = axes
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
  speculative = [name for name in groups if is_speculative(groups[name])]
  for axis, field in ((by_nfe, "nfe"), (by_time, "seconds_per_sample")):
    for name, group in groups.items():
      ys = [p["spelling"] for p in group]
      axis.plot([p[field] for p in group], ys, "o-", color=colour[name], label=name)
      if field == "nfe" and name in speculative[:1]:
        for i, p in enumerate(group):
          at = (4, -9) if i % 2 else (-6, 7)  # neighbours' labels go to different sides
          axis.annotate(short(p), (p[field], p["spelling"]), fontsize=7, xytext=at,
                        textcoords="offset points", color=colour[name])  # fmt: skip
    note = "" if ceiling is None else f" (held-out text: {ceiling:.2f})"
    axis.set_ylabel(f"spelling accuracy{note}")
  for name, curve in likelihood_curves(likelihoods).items():
    by_bits.plot(*zip(*curve, strict=True), "o-", color=colour.get(name), label=name)
  by_nfe.margins(0.1)  # room for the labels
  by_bits.set_ylabel("bits per character of the sampler")
  by_bits.set_xlabel("NFE (full forwards), exact")
  by_nfe.set_xlabel("NFE (full forwards)")
  some = next(iter(groups.values()))[0]
  by_time.set_xlabel(f"seconds a sample (batch {some['settings']['batch_size']}, {some['device']})")
  for axis in (by_nfe, by_bits, by_time):
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
  for axis in axes.flat:
    axis.grid(alpha=0.3)
    if axis.has_data():
      axis.legend(fontsize=8)
    else:
      axis.set_visible(False)
  figure.savefig(path, dpi=110)


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


def compared(groups: dict[str, list[dict]], likelihoods: list[dict]):
  """(title, quality, cost, curves of (cost, quality)); losses are negated: fewer are better."""

  def curves(cost, quality, scale=1.0):
    return {
      name: sorted((scale * p[cost], p[quality]) for p in group) for name, group in groups.items()
    }

  def negated(measured):
    return {name: [(cost, -loss) for cost, loss in curve] for name, curve in measured.items()}

  yield "NFE at equal spelling accuracy", "spelling", "NFE", curves("nfe", "spelling")
  seconds = curves("seconds_per_sample", "spelling", 1000)
  yield "Time at equal spelling accuracy", "spelling", "ms a sample", seconds
  if all("judge_nll" in p for group in groups.values() for p in group):
    judged = negated(curves("nfe", "judge_nll"))
    yield "NFE at equal NLL under the judge", "judge NLL", "NFE", judged
  if likelihoods:
    bits = negated(likelihood_curves(likelihoods))
    yield "NFE at equal likelihood", "bits per character", "NFE", bits


def is_speculative(group: list[dict]) -> bool:
  return group[0]["settings"]["decoder"]["name"] == "ssmd"


def likelihood_table(lines: list[dict]) -> list[str]:
  out = ["| model | decoder | bits per character | estimator | texts × samples | mean NFE, exact |",
         "|---|---|---|---|---|---|"]  # fmt: skip
  for line in lines:
    loops = line.get("n_inner")
    setting = line["decoder"]
    if loops is not None:
      setting += f", N={loops or '∞'}, Δτ={line['dtau']:g}"
    if "steps" in line:
      setting += f", {line['steps']} steps"
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
  draw(curves, groups, reference and reference["spelling"], likelihoods, folder / "figure3.png")
  lines = ["# Samples", "", *table(groups, reference), ""]
  baselines = [name for name in groups if not is_speculative(groups[name])]
  for title, quality, cost, measured in compared(groups, likelihoods):
    found = equal_quality.compare(measured, baselines)
    lines += [f"# {title}", "", *equal_quality.markdown(found, quality, cost), ""]
    ratios = [x.ratio for x in found]
    if ratios:
      print(f"{title}, ratio: {np.min(ratios):.2f} to {np.max(ratios):.2f}")
  if likelihoods:
    lines += ["# Likelihood", "", *likelihood_table(likelihoods), ""]
  (folder / "tables.md").write_text("\n".join(lines))
  print(f"wrote {folder / 'figure3.png'} and {folder / 'tables.md'}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
