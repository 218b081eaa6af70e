"""The picture and the tables of the text8 experiment, from its recorded lines alone.

  python experiments/ssmd_text8/report.py --folder=experiments/ssmd_text8

Reads curves.jsonl (experiments/curves.py), points.jsonl (sample.py) and, where they are,
likelihood.jsonl; writes figure3.png and tables.md. Figure 3 of arXiv:2510.03929 is the losses and
the spelling accuracy against NFE; here the accuracy against seconds per sample and the exact
likelihood of the samplers against their NFE stand beside them.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Iterator

from sbdjax import bootstrap, figures
from sbdjax.evals import equal_quality

# Models in words; others are shown as they are named.
_MODELS = {
  "no_residual": "SSMD without output residual",
  "two_causal": "SSMD, two causal blocks",
} | {f"SDTT{n}": f"SDTT, round {n}" for n in (1, 2, 3)}

_OF_RATIOS = "Ratios have no interval here; experiments/ssmd_text8/README.md has some with theirs."
_OF_ERRORS = "[low, high]: normal 95 % intervals of the standard errors over texts."


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
    return f"N={decoder['n_inner']}, {window(decoder)}"
  return f"{decoder['steps']} steps"


def window(decoder: dict) -> str:
  """A cosine window by its Δτ, a linear one by its slope."""
  return f"slope {decoder['slope']:g}" if "slope" in decoder else f"Δτ={decoder['dtau']:g}"


def likelihood_curves(lines: list[dict]) -> dict[str, list[tuple[float, float]]]:
  """(mean NFE, bits per character) of each model's sampler; windows that grow, or steps."""
  return {
    name: [(x["mean_nfe"], x["bits_per_character"]) for x in curve]
    for name, curve in likelihoods_by_nfe(lines).items()
  }


def likelihoods_by_nfe(lines: list[dict]) -> dict[str, list[dict]]:
  """Records of each model's sampler, by NFE; windows that grow, or steps."""
  out: dict[str, list[dict]] = {}
  for line in lines:
    if "mean_nfe" in line and line.get("dtau", 0.0) < 1:
      out.setdefault(line["label"], []).append(line)
  return {name: sorted(group, key=lambda x: x["mean_nfe"]) for name, group in out.items()}


def draw(path: pathlib.Path, folder: str | pathlib.Path = "") -> None:
  """Losses; spelling accuracy against NFE and seconds; the samplers' likelihood against NFE.

  Bars: two standard errors, of likelihoods over texts, of spelling over words as if each were drawn
  by itself.

  Args:
    path: PNG to write; a PDF is written beside it.
    folder: of the records; relative ones are below this file's.
  """
  folder = pathlib.Path(__file__).resolve().parent / folder
  groups, curves = grouped(read(folder / "points.jsonl")), read(folder / "curves.jsonl")
  likelihoods = likelihoods_by_nfe(read(folder / "likelihood.jsonl"))
  reference = next((p for p in read(folder / "points.jsonl") if "nfe" not in p), None)
  names = dict.fromkeys([*groups, *(c["run"] for c in curves)])
  styles = {name: dict(color=c, marker=m) for name, c, m in zip(
    names, figures.COLOURS, figures.MARKERS, strict=False)}  # fmt: skip
  with figures.drawing(path, figures.PAGE, 5.6) as figure:
    (losses, by_nfe), (by_bits, by_time) = figure.subplots(2, 2)
    _losses(losses, curves, styles)
    for name, group in groups.items():
      ys, label = [p["spelling"] for p in group], _MODELS.get(name, name)
      how = dict(
        yerr=[2 * (spelling_error(p) or 0.0) for p in group], elinewidth=0.6, **styles[name]
      )
      by_nfe.errorbar([p["nfe"] for p in group], ys, label=label, **how)
      by_time.errorbar([1000 * p["seconds_per_sample"] for p in group], ys, **how)
    for name, lines in likelihoods.items():
      errors = [2 * (x["stderr"] or 0.0) for x in lines]
      at = [x["mean_nfe"] for x in lines], [x["bits_per_character"] for x in lines]
      by_bits.errorbar(*at, yerr=errors, elinewidth=0.6, **styles[name])
    some = next(iter(groups.values()))[0]
    by_time.set_xlabel(f"ms per sample (batch {some['settings']['batch_size']}, {some['device']})")
    for panel in (by_nfe, by_time):
      held_out = f"\n(held-out text: {reference['spelling']:.2f})" if reference else ""
      panel.set_ylabel(f"words spelled right{held_out}")
    by_bits.set(xlabel="NFE (full forwards), exact", ylabel="bits per character of the sampler")
    by_nfe.set_xlabel("NFE (full forwards)")
    for panel in (by_nfe, by_bits, by_time):
      figures.log_axis(panel, "x")
    for panel in (losses, by_nfe, by_bits, by_time):
      panel.set_visible(panel.has_data())
    figures.legend_below(figure, 3)
    # The ends of a curve: the settings between them are in the table.
    figures.place_notes(by_nfe, [
      figures.Note(p["nfe"], p["spelling"], short(p), styles[name]["color"])
      for name, group in list(groups.items())[:2] for p in (group[0], group[-1])
    ])  # fmt: skip


def spelling_error(point: dict) -> float | None:
  """Standard error of a share of words, each as if drawn by itself; None where they are not counted."""
  share, words = point["spelling"], point.get("words")
  return (share * (1 - share) / words) ** 0.5 if words else None


def spelled(point: dict) -> str:
  """Share of words spelled right, with the normal interval of its error where there is one."""
  return bootstrap.normal(point["spelling"], spelling_error(point)).shown(3)


def _losses(axes, curves: list[dict], styles: dict[str, dict]) -> None:
  """Training curves: drafts dashed."""
  lines: dict[tuple[str, str], list] = {}
  for c in curves:
    lines.setdefault((c["run"], c["metric"].rpartition("/")[2]), []).append((c["step"], c["value"]))
  drafts = False
  for (run, metric), values in lines.items():
    dashed = metric.startswith("draft")
    drafts |= dashed
    axes.plot(*zip(*values, strict=True), "--" if dashed else "-", color=styles[run]["color"])
  if drafts:
    axes.plot([], [], "--", color=figures.GREY, label="drafts (other losses: solid)")
  axes.set(xlabel="update", ylabel=f"held-out loss, {curves[0]['unit']}" if curves else "loss")
  axes.xaxis.set_major_formatter("{x:,.0f}")


def cell(value, digits: int) -> str:
  return "" if value is None else f"{value:.{digits}f}"


def table(groups: dict[str, list[dict]], reference: dict | None) -> list[str]:
  """The analogue of Table 1, one row a point."""
  any_point = next(iter(groups.values()))[0]
  judge = any_point["settings"]["judge"]
  note = f"Judge: {judge}." if judge else "No judge was given."
  lines = [
    f"{any_point['settings']['samples']} samples of {any_point['settings']['length']} characters; "
    f"words of {any_point['settings']['corpus']}. {note} Acceptance: of the drafts looked at. "
    "Spelling: 95 % interval as if each word were drawn by itself. Entropy, judge NLL, acceptance: one "
    "figure of all samples, whose error was not recorded: no interval.",
    "",
    "| model | setting | NFE | spelling | entropy | judge NLL | acceptance | ms per sample |",
    "|---|---|---|---|---|---|---|---|",
  ]
  for name, group in groups.items():
    for p in group:
      lines.append(
        f"| {name} | {short(p)} | {p['nfe']:.1f} | {spelled(p)} | {p['entropy']:.3f} | "
        f"{cell(p.get('judge_nll'), 3)} | {cell(p.get('acceptance'), 3)} | "
        f"{1000 * p['seconds_per_sample']:.1f} |"
      )
  if reference:
    lines.append(
      f"| held-out text | | | {spelled(reference)} | {reference['entropy']:.3f} | "
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
  yield "Time at equal spelling accuracy", "spelling", "ms per sample", seconds
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
      setting += f", N={loops or '∞'}, {window(line)}"
    if "steps" in line:
      setting += f", {line['steps']} steps"
    bits = bootstrap.normal(line["bits_per_character"], line["stderr"]).shown(3)
    out.append(
      f"| {line['label']} | {setting} | {bits} | "
      f"{line['estimator']} | {line['texts']} × {line['samples_per_text']} | "
      f"{cell(line.get('mean_nfe'), 2)} |"
    )
  return out


def comparisons(
  folder: pathlib.Path,
) -> Iterator[tuple[str, str, str, list[equal_quality.Comparison]]]:
  """(title, quality, cost, every speculative point against every baseline that has its quality)."""
  groups = grouped(read(folder / "points.jsonl"))
  baselines = [name for name in groups if not is_speculative(groups[name])]
  for title, quality, cost, measured in compared(groups, read(folder / "likelihood.jsonl")):
    yield title, quality, cost, equal_quality.compare(measured, baselines)


def all_tables(folder: str | pathlib.Path = "") -> str:
  """What tables.md of a folder holds; relative ones are below this file's."""
  folder = pathlib.Path(__file__).resolve().parent / folder
  points, likelihoods = read(folder / "points.jsonl"), read(folder / "likelihood.jsonl")
  reference = next((p for p in points if "nfe" not in p), None)
  lines = ["# Samples", "", *table(grouped(points), reference), ""]
  lines += [_OF_RATIOS, ""]
  for title, quality, cost, found in comparisons(folder):
    lines += [f"# {title}", "", *equal_quality.markdown(found, quality, cost), ""]
  if likelihoods:
    lines += ["# Likelihood", "", _OF_ERRORS, "", *likelihood_table(likelihoods), ""]
  return "\n".join(lines).strip("\n")


def all_tables_of_ablations() -> str:
  """`all_tables` of ablations/."""
  return all_tables("ablations")


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--folder", required=True, help="where the recorded lines are")
  folder = pathlib.Path(parser.parse_args(argv).folder)
  points = read(folder / "points.jsonl")
  if not grouped(points):
    parser.error(f"no measured points in {folder / 'points.jsonl'}: run sample.py first")
  draw(folder / "figure3.png", folder.resolve())
  for title, _, _, found in comparisons(folder.resolve()):
    if found:
      ratios = [x.ratio for x in found]
      print(f"{title}, ratio: {min(ratios):.2f} to {max(ratios):.2f}")
  (folder / "tables.md").write_text(all_tables(folder.resolve()) + "\n")
  print(f"wrote {folder / 'figure3.png'} and {folder / 'tables.md'}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
