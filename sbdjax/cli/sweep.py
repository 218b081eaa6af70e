"""Measure a grid of decoders: --config=FILE.py[:VARIANT] --workdir=DIR [--config.section.field=VALUE ...]

The config file has `get_config` with sections `sweep` (SweepConfig), `decoder` (the settings of a
method: see `methods`) and `data` (DataConfig, where the prompts come from), and `get_sweep`, which
gives one dict of overrides per point, like {"decoder.gamma": 0.1}. Each point is one JSON line of
DIR/points.jsonl; re-running the command measures what is missing. At the end: a table, and DIR/sweep.png. Where the
file has `get_surface`, which names two settings and what is measured over them, a smooth surface is
fitted (DIR/surface.png) and its best point printed.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict
from rich import box
from rich.console import Console
from rich.table import Table

from sbdjax.cli import flags
from sbdjax.cli.common import CONFIG_HELP, Parser, load_config, open_config, split_overrides
from sbdjax.data.config import DataConfig
from sbdjax.errors import UsageError
from sbdjax.evals import plot, surface
from sbdjax.evals.sweep import POINTS, Point, SweepConfig, check_used, make_point, run_sweep

PICTURE, SURFACE = "sweep.png", "surface.png"


def schema(config: ConfigDict) -> Mapping[str, type]:
  """Section -> dataclass, of a sweep config."""
  decoder = flags.decoder_schema(config.get("decoder", {}))
  return {"sweep": SweepConfig, "decoder": decoder, "data": DataConfig}


def read_grid(flag: str) -> list[dict[str, Any]]:
  """What `get_sweep` of the config file gives.

  Raises:
    UsageError: no such function, or not dicts.
  """
  config = open_config(flag)
  grid = list(config.call("get_sweep"))
  if not grid or not all(isinstance(entry, Mapping) for entry in grid):
    raise UsageError(f"get_sweep of {config.name} must give at least one dict of overrides")
  return [dict(entry) for entry in grid]


def read_surface(flag: str) -> tuple[str, str, str] | None:
  """What `get_surface` of the config file gives; None without it.

  That is (setting, setting, measurement), like ("decoder.block_size", "decoder.num_candidates",
  "tokens_per_second").

  Raises:
    UsageError: anything else.
  """
  config = open_config(flag)
  if not config.has("get_surface"):
    return None
  names = tuple(config.call("get_surface"))
  if len(names) != 3 or not all(isinstance(n, str) for n in names):
    raise UsageError(f"get_surface of {config.name} must give two settings and a measurement")
  return names


# Heading and width of each column: with these, tables of several models stand in line, and fit 80.
_COLUMNS = {
  "decoder": 11,
  "tokens per\nforward": 8,
  "\ntokens/s": 8,
  "judge\nNLL": 5,
  "\nH": 4,
  "dist-\ninct-1": 6,
  "dist-\ninct-2": 6,
  "re-\npeats": 5,
}


def table(rows: Iterable[dict[str, Any]], title: str) -> Table:
  """What the points of one model say, side by side."""
  shown = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
  for head, width in _COLUMNS.items():
    shown.add_column(head, justify="right" if head != "decoder" else "left", min_width=width)
  for row in rows:
    decoder = row["settings"]["decoder"]
    shown.add_row(
      f"{decoder['name']} {plot.annotation(decoder)}",
      f"{row['tpf']:.2f}x",
      f"{row['tokens_per_second']:,.0f}",
      f"{row['judge_nll']:.3f}",
      "" if row["entropy"] is None else f"{row['entropy']:.2f}",
      f"{row['distinct_1']:.3f}",
      f"{row['distinct_2']:.3f}",
      f"{row['repetition']:.3f}",
    )
  return shown


def measure(points: Sequence[Point], workdir: pathlib.Path, console: Console) -> list[dict]:
  """`run_sweep` with the point being measured shown in `console`."""

  def skipped(line: str) -> None:
    console.print(f"already measured: {line}", style="bright_black", highlight=False)

  with console.status("opening models ...") as status:
    return run_sweep(points, workdir, status.update, skipped)


def conclude(rows: list[dict[str, Any]], workdir: pathlib.Path, console: Console) -> None:
  """Prints a table a model and draws the picture."""
  plot.draw_sweep(rows, workdir / PICTURE)
  labels = [row["settings"]["sweep"]["label"] for row in rows]
  for label in dict.fromkeys(labels):
    console.print(table((r for r, of in zip(rows, labels, strict=True) if of == label), label))
  first, judge = rows[0], rows[0]["settings"]["sweep"]["judge"]
  console.print(
    f"{first['prompts']} prompts, batch {first['batch_size']}, {first['device']}. Judge NLL: nats a "
    f"token under {judge}.\nH: mean entropy (nats) of the model's own next tokens; a bound of γ "
    "reveals\nabout 1 + γ/H tokens per forward at most. Repeats: share of 4-grams seen before.",
    style="bright_black",
    highlight=False,
  )
  console.print(f"points: {workdir / POINTS}\nplot:   {workdir / PICTURE}", highlight=False)


def conclude_surface(
  rows: Sequence[dict[str, Any]],
  names: tuple[str, str, str],
  workdir: pathlib.Path,
  console: Console,
) -> None:
  """Fits and draws the surface over the points that have both settings; prints where it is best.

  Raises:
    UsageError: no point has them, or too few values of them.
  """

  def setting(row, name):
    section, _, field = name.partition(".")
    return row["settings"].get(section, {}).get(field)

  x_name, y_name, z_name = names
  found: list[tuple[Any, Any, Any]] = [
    (setting(r, x_name), setting(r, y_name), r.get(z_name)) for r in rows
  ]
  found = [point for point in found if None not in point]
  if not found:
    raise UsageError(f"no point of the sweep has {x_name}, {y_name} and {z_name}: see get_surface")
  x, y, z = zip(*found, strict=True)
  fitted = surface.fit(x, y, z)
  surface.draw(fitted, x, y, names, workdir / SURFACE)
  top = max(found, key=lambda point: point[2])
  for label, (a, b, value) in (("measured", top), ("fitted", fitted.best())):
    console.print(
      f"best {label}: {x_name}={a:.4g}, {y_name}={b:.4g}: {z_name} {value:,.4g}", highlight=False
    )
  console.print(
    f"surface: degree {fitted.degree}, error at a left-out point {fitted.errors[fitted.degree]:.3g}"
    f"; {workdir / SURFACE}",
    highlight=False,
  )


def main(argv: list[str]) -> int:
  """Runs the verb; returns the exit code."""
  rest, overrides = split_overrides(argv)
  parser = Parser(prog="sweep", description=__doc__)
  parser.add_argument("--config", required=True, help=CONFIG_HELP)
  parser.add_argument("--workdir", required=True, help="folder for points.jsonl and sweep.png")
  args = parser.parse_args(rest)
  overrides = flags.modern_overrides(overrides)
  config, grid = load_config(args.config, overrides, schema), read_grid(args.config)
  points = [make_point(config, entry, flags.note) for entry in grid]
  check_used(config, grid, [n.removeprefix("decoder.") for n in overrides if "decoder." in n])
  names = read_surface(args.config)
  console = Console()
  workdir = pathlib.Path(args.workdir).expanduser()
  rows = measure(points, workdir, console)
  conclude(rows, workdir, console)
  if names:
    conclude_surface(rows, names, workdir, console)
  return 0
