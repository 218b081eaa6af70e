"""The figure and the tables of this experiment, from the recorded points.

  python experiments/one_task/tables.py --points=experiments/one_task/points.jsonl \
    --out=experiments/one_task

Draws one_task.png: exact match against tokens per forward, a curve a reveal rule or decoder, bars are
Wilson's 95 % intervals; writes tables.md and tables.tex: every point, and the best of each way at no
more than two points of accuracy below the AR decoding of the same model.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from sbdjax import figures
from sbdjax.data.files import write_atomically
from sbdjax.evals import wording
from sbdjax.report import rows, tables
from sbdjax.report.measures import Value
from sbdjax.report.read import File, Record, collect
from sbdjax.report.rows import Point
from sbdjax.report.tables import Table

HERE = pathlib.Path(__file__).resolve().parent
ALLOWED = 0.02  # of accuracy below AR
# They promise the text of another decoding: `reproduced`.
LOSSLESS = ("sbd_verified", "jacobi", "jacobi_window", "jacobi_multiblock", "freedave")


def groups(points: Sequence[Point]) -> dict[str, list[Point]]:
  """Series -> its points."""
  found: dict[str, list[Point]] = {}
  for name, point in zip(rows.series(points), points, strict=True):
    found.setdefault(name, []).append(point)
  return found


def references(points: Sequence[Point]) -> dict[str, Value]:
  """Model -> accuracy of its AR decoding."""
  return {p.label: p.values["accuracy"] for p in points if p.decoder["name"] == "ar"}


def reproduced(record: Record, records: Sequence[Record]) -> Record | None:
  """The decoding whose text this one must have: AR, or that which FreeDave accelerates."""
  model, decoder = record["settings"]["model"]["label"], record["settings"]["decoder"]
  if decoder["name"] not in LOSSLESS:
    return None
  wanted: dict[str, Any] = {"name": "ar"}
  if decoder["name"] == "freedave":
    drawn = {"temperature": decoder.get("temperature")}
    dynamic = {"name": "dynamic", "threshold": decoder.get("threshold")}
    wanted = (dynamic if "threshold" in decoder else {"name": "static"}) | drawn
  for other in records:
    settings = other["settings"]
    same = all(settings["decoder"].get(k) == v for k, v in wanted.items())
    if same and settings["model"]["label"] == model:
      return other
  return None


def texts_of(record: Record, records: Sequence[Record]) -> str:
  """`those of AR`, or NO where they should be; empty for decoders that promise nothing."""
  like = reproduced(record, records)
  if like is None or "text_crc32" not in record:
    return ""
  name = wording.method(like["settings"]["decoder"]["name"])
  return f"those of {name}" if record["text_crc32"] == like["text_crc32"] else "NO"


def recorded(file: str | pathlib.Path) -> tuple[list[Point], list[Record]]:
  """(points, records) of what measure.py wrote."""
  (found,) = collect([str(file)])
  return rows.points([File("Every point", found.records)]), found.records


def draw(path: pathlib.Path, points: Sequence[Point] | None = None) -> None:
  """A panel for each model, on the same axes; `points` None: those of this folder's record."""
  points = recorded(HERE / "points.jsonl")[0] if points is None else points
  points = [p for p in points if not p.decoder.get("temperature")]
  models = list(dict.fromkeys(p.label for p in points))
  down = -(-len(models) // 2)
  most = max(len(groups([p for p in points if p.label == model])) for model in models)
  ar = references(points)
  with figures.drawing(path, figures.PAGE, (2.4 + 0.11 * most) * down) as figure:
    axes = figure.subplots(down, 2, sharex=True, sharey=True, squeeze=False).ravel()
    for panel, model in zip(axes, models, strict=False):
      for n, (name, group) in enumerate(groups([p for p in points if p.label == model]).items()):
        x = [p.values["tpf"].value for p in group]
        y = [p.values["accuracy"] for p in group]
        line = "-" if all(rows.moving(p.decoder) for p in group) and len(group) > 1 else ""
        panel.errorbar(
          x, [v.value for v in y], yerr=figures.bars(y), label=in_words(name, group),
          linestyle=line, elinewidth=0.6, marker=figures.MARKERS[n % len(figures.MARKERS)],
          color=figures.COLOURS[n % len(figures.COLOURS)],
        )  # fmt: skip
      if model in ar:
        panel.axhline(ar[model].value, color=figures.GREY, linestyle="--", linewidth=0.8)
      panel.set_title(model)
      panel.tick_params(labelbottom=True)
      panel.legend(fontsize=6, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.12))
    for panel in axes[len(models) :]:
      panel.set_axis_off()
    figure.supxlabel("tokens per forward (AR = 1)", fontsize=8)
    figure.supylabel("exact match", fontsize=8)


RULES = {  # panel: rules that are compared in it
  "Factor and EB with the entropy": ("eb_entropy", "factor"),
  "Factor and EB with the confidence": ("eb_confidence", "factor"),
  "EB and thresholds": ("eb_entropy", "confidence_threshold", "entropy_threshold"),
}


def draw_rules(path: pathlib.Path) -> None:
  """Figures 12 and 13 of SBD, and the thresholds: reveal rules of one model at one block size."""
  points = [p for p in recorded(HERE / "points.jsonl")[0] if p.label == "SBD"]
  (ar,) = (p for p in points if p.decoder["name"] == "ar")
  size = max(p.decoder["block_size"] for p in points if p.decoder["name"] == "sbd")
  with figures.drawing(path, figures.PAGE, 2.9) as figure:
    panels = figure.subplots(1, len(RULES), sharex=True, sharey=True)
    styles = {rule: n for n, rule in enumerate(dict.fromkeys(sum(RULES.values(), ())))}
    for panel, (title, rules) in zip(panels, RULES.items(), strict=True):
      for rule in rules:
        of_rule = [p for p in points if p.decoder.get("rule") == rule]
        group = [p for p in of_rule if p.decoder["block_size"] == size]
        group.sort(key=lambda p: p.values["tpf"].value)
        y = [p.values["accuracy"] for p in group]
        panel.errorbar(
          [p.values["tpf"].value for p in group], [v.value for v in y], yerr=figures.bars(y),
          marker=figures.MARKERS[styles[rule]], color=figures.COLOURS[styles[rule]],
          elinewidth=0.6, label=wording.RULES[rule],
        )  # fmt: skip
      panel.axhline(ar.values["accuracy"].value, color=figures.GREY, linestyle="--", linewidth=0.8)
      panel.set_title(title, fontsize=8)
      panel.set_xlabel("tokens per forward")
    panels[0].set_ylabel("exact match")
    figures.legend_below(figure, 4)


def in_words(name: str, group: Sequence[Point]) -> str:
  """The legend of a series: method and rule in words, and the settings that tell it from others."""
  decoder = group[0].decoder
  extra = name.removeprefix(" ".join(str(decoder[k]) for k in ("name", "rule") if k in decoder))
  settings = (text.partition("=") for text in extra.split())
  words = [wording.RULES.get(decoder.get("rule", ""), "")]
  words += [wording.setting(key, value or True) for key, _, value in settings]
  words = [word for word in words if word]
  return wording.method(decoder["name"]) + (f": {', '.join(words)}" if words else "")


def fastest(points: Sequence[Point], records: Sequence[Record]) -> Table:
  """Of each series the point with most tokens per forward that is not worse than its model's AR.

  Block diffusion has no AR decoding of its own; there its static decoding stands for it.
  """
  of = dict(references(points))
  of |= {p.label: p.values["accuracy"] for p in points if p.decoder["name"] == "static"}
  kinds = list(records[0]["by_kind"])
  lines = []
  for name, group in groups(points).items():
    least = of[group[0].label].value - ALLOWED
    good = [p for p in group if p.values["accuracy"].value >= least]
    chosen = max(good, key=lambda p: p.values["tpf"].value, default=None)
    if chosen is None:
      lines.append([name, "none", *[""] * (4 + len(kinds))])
      continue
    values, by_kind = chosen.values, records[chosen.record]["by_kind"]
    shown = [tables.shown(values[key]) for key in ("tpf", "accuracy")]
    shares = [f"{by_kind[kind]:.0%}" for kind in kinds]
    speed = tables.shown(values["tokens_per_second"])
    text = texts_of(records[chosen.record], records)
    lines.append([name, rows.annotation(chosen.decoder), *shown, speed, text, *shares])
  heads = ["series", "setting", "tokens per forward", "exact match", "tokens/s", "texts", *kinds]
  title = f"Fastest setting of each within {ALLOWED:.0%} of accuracy of the same model's AR"
  return Table(title, heads, lines)


def errors(points: Sequence[Point], records: Sequence[Record]) -> Table:
  """What kind of tokens are wrong, by how many to the left were masked when they were revealed."""
  lefts = ((0, 0), (1, 1), (2, 3), (4, 99))
  names = [
    f"{a} masked" if a == b else f"{a} to {b}" if b < 99 else f"{a} and more" for a, b in lefts
  ]
  lines = []
  for name, point in zip(rows.series(points), points, strict=True):
    found = records[point.record]["errors"]
    by_left = {int(k): v for k, v in found["by_masked_left"].items()}
    every = list(by_left.values())
    total = sum(v["tokens"] for v in every)
    share = lambda n, of: f"{n / of:.1%}" if of else ""
    wrong = lambda v: v["substituted"] + v["inserted"]
    cells = [share(sum(v[kind] for v in every), total) for kind in ("substituted", "inserted")]
    cells.append(share(found["deleted"], total))
    for a, b in lefts:
      some = [v for k, v in by_left.items() if a <= k <= b]
      cells.append(share(sum(map(wrong, some)), sum(v["tokens"] for v in some)))
    lines.append([name, rows.annotation(point.decoder), *cells])
  heads = ["series", "setting", "substituted", "inserted", "left out", *names]
  title = (
    "Wrong tokens, of all and by how many to the left were still masked when they were revealed"
  )
  return Table(title, heads, lines)


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--points", required=True, help="points.jsonl of measure.py")
  parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to write to")
  args = parser.parse_args(argv)

  points, records = recorded(args.points)
  draw(args.out / "one_task.png", points)
  found = [fastest(points, records), *tables.of_points(points), errors(points, records)]
  for name, text in (("tables.md", tables.markdown(found)), ("tables.tex", tables.latex(found))):
    write_atomically(args.out / name, lambda file, text=text: file.write(text.encode()))
  print(json.dumps({"points": len(points), "written": ["one_task.png", "tables.md", "tables.tex"]}))
  return 0


if __name__ == "__main__":
  sys.exit(main())
