"""Measure a grid of decoders: --config=FILE.py[:VARIANT] --workdir=DIR [--config.section.field=VALUE ...]

The config file has `get_config` with sections `sweep` (SweepConfig), `decoder` (DecoderConfig) and
`data` (DataConfig, where the prompts come from), and `get_sweep`, which gives one dict of
overrides a point, like {"decoder.gamma": 0.1}. Each point is one JSON line of DIR/points.jsonl;
started again, the sweep measures what is missing. At the end: a table, and DIR/sweep.png. Where the
file has `get_surface`, which names two settings and what is measured over them, a smooth surface is
fitted (DIR/surface.png) and its best point printed.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict
from rich import box
from rich.console import Console
from rich.table import Table

from sbdjax.bench.timing import Pass, TimedDecoder, summarise
from sbdjax.cli import decoders, record
from sbdjax.cli.common import Parser, load_config, load_module, split_overrides
from sbdjax.cli.decoders import DecoderConfig
from sbdjax.data.config import DataConfig
from sbdjax.data.sources import load_corpus
from sbdjax.decode.generate import check_context
from sbdjax.errors import DataError, UsageError
from sbdjax.evals import diversity, plot, surface
from sbdjax.evals.judge import Judge
from sbdjax.interop.pretrained import Pretrained, load_pretrained
from sbdjax.settings import nearest, to_dataclass

POINTS, PICTURE, SURFACE = "points.jsonl", "sweep.png", "surface.png"


@dataclasses.dataclass(frozen=True)
class SweepConfig:
  """What is measured, and on what.

  Attributes:
    checkpoint: the model that decodes.
    label: a name of it for tables and plots; empty becomes `checkpoint`.
    judge: the model under which the text is scored; empty becomes `checkpoint`.
    num_prompts: prompts, the beginnings of the first long enough documents.
    prompt_tokens: tokens of each prompt, bos included.
    split: of the data: "train", "validation" or "test".
    batch_size: prompts decoded together.
    repeats: times all prompts are decoded; speeds are medians.
    seed: of the noise at temperature > 0.
  """

  checkpoint: str
  label: str = ""
  judge: str = ""
  num_prompts: int = 32
  prompt_tokens: int = 16
  split: str = "validation"
  batch_size: int = 1
  repeats: int = 3
  seed: int = 0

  def __post_init__(self):
    for name in ("label", "judge"):
      if not getattr(self, name):
        object.__setattr__(self, name, self.checkpoint)
    for name in ("num_prompts", "prompt_tokens", "batch_size", "repeats"):
      if getattr(self, name) < 1:
        raise UsageError(f"sweep.{name}={getattr(self, name)} must be at least 1")


SECTIONS = {"sweep": SweepConfig, "decoder": DecoderConfig, "data": DataConfig}


class Point(NamedTuple):
  """One setting of the grid; `given` are the decoder's fields that were set at all."""

  sweep: SweepConfig
  decoder: DecoderConfig
  data: DataConfig
  given: frozenset[str] = frozenset()

  def settings(self, fingerprint: int) -> dict[str, Any]:
    """Everything the outcome depends on besides program and machine."""
    return {
      "sweep": dataclasses.asdict(self.sweep),
      "decoder": decoders.settings_of(self.decoder),
      "data": dataclasses.asdict(self.data),
      "weights_crc32": fingerprint,
    }


def key_of(settings: Mapping[str, Any]) -> str:
  """Equal for settings with the same outcome: all but the label."""
  sweep = {name: value for name, value in settings["sweep"].items() if name != "label"}
  return json.dumps({**settings, "sweep": sweep}, sort_keys=True)


def schema(config: ConfigDict) -> Mapping[str, type]:
  """Section -> dataclass, of a sweep config."""
  del config
  return SECTIONS


def make_point(base: ConfigDict | Mapping[str, Any], overrides: Mapping[str, Any]) -> Point:
  """The base configuration with one entry of the grid.

  Raises:
    UsageError: an unknown section or field, a wrong value, or an override without effect.
  """
  for name in base:
    if name not in SECTIONS:
      raise UsageError(
        f"unknown section config.{name}{nearest(name, SECTIONS)}: a sweep has {', '.join(SECTIONS)}"
      )
  values = {name: dict(base.get(name, {})) for name in SECTIONS}
  for name, value in overrides.items():
    section, _, field = name.partition(".")
    if section not in SECTIONS or not field:
      raise UsageError(f"get_sweep gives {name!r}: overrides are named like decoder.gamma")
    values[section][field] = value
  sections = {name: to_dataclass(cls, values[name], name) for name, cls in SECTIONS.items()}
  point = Point(**sections, given=frozenset(values["decoder"]))
  given = (name.partition(".") for name in overrides)
  decoders.check_used(point.decoder, [f for section, _, f in given if section == "decoder"])
  return point


def read_grid(flag: str) -> list[dict[str, Any]]:
  """What `get_sweep` of the config file FILE.py[:VARIANT] gives.

  Raises:
    UsageError: no such function, or not dicts.
  """
  path, colon, argument = flag.partition(":")
  get_sweep = getattr(load_module(pathlib.Path(path)), "get_sweep", None)
  if get_sweep is None:
    raise UsageError(f"config file {path} has no function get_sweep")
  grid = list(get_sweep(argument) if colon else get_sweep())
  if not grid or not all(isinstance(entry, Mapping) for entry in grid):
    raise UsageError(f"get_sweep of {path} must give at least one dict of overrides")
  return [dict(entry) for entry in grid]


def read_surface(flag: str) -> tuple[str, str, str] | None:
  """What `get_surface` of the config file FILE.py[:VARIANT] gives; None without it.

  That is (setting, setting, measurement), like ("decoder.block_size", "decoder.num_candidates",
  "tokens_per_second").

  Raises:
    UsageError: anything else.
  """
  path, colon, argument = flag.partition(":")
  get_surface = getattr(load_module(pathlib.Path(path)), "get_surface", None)
  if get_surface is None:
    return None
  names = tuple(get_surface(argument) if colon else get_surface())
  if len(names) != 3 or not all(isinstance(n, str) for n in names):
    raise UsageError(f"get_surface of {path} must give two settings and a measurement")
  return names


class Bench:
  """Opens each model and compiles each decoder once for all points."""

  def __init__(self):
    self._models: dict[str, Pretrained] = {}
    self._judges: dict[str, Judge] = {}
    self._decoders: dict[Any, TimedDecoder] = {}
    self._prompts: dict[Any, list[list[int]]] = {}

  def model(self, name: str) -> Pretrained:
    if name not in self._models:
      self._models[name] = load_pretrained(name)
    return self._models[name]

  def judge(self, name: str) -> Judge:
    if name not in self._judges:
      model = self.model(name)
      self._judges[name] = Judge(model.lm, model.params)
    return self._judges[name]

  def decoder(self, model: Pretrained, config: DecoderConfig) -> TimedDecoder:
    """Shared by all points whose compiled programs are the same."""
    eos_ids = model.generation.eos_ids
    key = (model.lm.config, eos_ids, decoders.static_part(config))
    if key not in self._decoders:
      self._decoders[key] = TimedDecoder(
        lambda numbers: decoders.make_sampler(model.lm, config, eos_ids, numbers)
      )
    return self._decoders[key]

  def prompts(self, point: Point) -> list[list[int]]:
    """The first tokens of documents that are longer than that.

    Raises:
      DataError: fewer such documents than asked for.
    """
    sweep, tokenizer = point.sweep, self.model(point.sweep.checkpoint).tokenizer
    key = (point.data, sweep.split, sweep.prompt_tokens, sweep.num_prompts, tokenizer.vocab_size)
    if key not in self._prompts:
      corpus = load_corpus(point.data, sweep.split, tokenizer)
      length, wanted = sweep.prompt_tokens, sweep.num_prompts
      starts = corpus.starts[corpus.lengths > length][:wanted]
      if len(starts) < wanted:
        raise DataError(
          f"{corpus.origin}: {len(starts)} documents are longer than sweep.prompt_tokens={length}: "
          f"lower sweep.num_prompts={wanted}"
        )
      self._prompts[key] = [corpus.tokens[s : s + length].astype(int).tolist() for s in starts]
    return self._prompts[key]

  def resolved(self, point: Point) -> Point:
    """`point` with what its checkpoint says of how it is decoded."""
    generation = self.model(point.sweep.checkpoint).generation
    return point._replace(decoder=decoders.for_checkpoint(point.decoder, generation, point.given))

  def check(self, point: Point):
    """Raises the error that measuring the point would meet, before anything is run or written."""
    model = self.model(point.sweep.checkpoint)
    decoders.make_sampler(model.lm, point.decoder, model.generation.eos_ids)
    shape = model.lm.config
    prompts = self.prompts(point)
    check_context(prompts, point.decoder.max_tokens, shape.max_seq_len, shape.vocab_size)
    judge = self.model(point.sweep.judge)
    record.check_same_vocabulary(model, judge, point.sweep.judge)
    total = point.sweep.prompt_tokens + point.decoder.max_tokens
    if total > judge.lm.config.max_seq_len:
      raise UsageError(
        f"the judge reads at most {judge.lm.config.max_seq_len} tokens; prompt and text may have "
        f"{total}: lower decoder.max_tokens"
      )

  def measure(self, point: Point) -> dict[str, Any]:
    """Decodes, times and scores; see `measurements` for the fields."""
    sweep = point.sweep
    model, prompts = self.model(sweep.checkpoint), self.prompts(point)
    decoder = self.decoder(model, point.decoder)
    compiled_before = decoder.compile_seconds
    numbers, key = decoders.numbers_of(point.decoder), jax.random.key(sweep.seed)
    run = lambda some: decoder.run(model.params, some, key, numbers, sweep.batch_size)
    run(prompts[: sweep.batch_size])  # the first execution is slower than the others
    passes = [run(prompts) for _ in range(sweep.repeats)]
    judge = self.judge(sweep.judge)
    # A model that was not trained as a next-token model has no such distribution.
    own = self.judge(sweep.checkpoint) if model.generation.attention == "causal" else None
    return {
      "compile_seconds": decoder.compile_seconds - compiled_before,
      **measurements(passes, judge, own),
      "dtype": model.lm.config.compute_dtype,
      "batch_size": sweep.batch_size,
    }


def measurements(passes: Sequence[Pass], judge: Judge, own: Judge | None) -> dict[str, Any]:
  """Quality and speed of one point.

  `tokens` (valid ones), `nfe`, `prefill_nfe`, `query_tokens`, `drafted` and `accepted` are sums
  over rows, `tpf` is tokens / nfe (the NFE speed-up over autoregressive decoding),
  `tokens_per_second` excludes compiling and the prompts' forwards, `judge_nll` is in nats a token
  under the judge, `own_nll` and `entropy` (H) under the decoding model's own next-token
  distribution along the text (None without `own`); `text_crc32` is equal for equal token ids.
  """
  results = passes[0].results
  prompts, texts = [r.prompt_tokens for r in results], [r.text_tokens for r in results]
  judged, owned = judge.score(prompts, texts), own and own.score(prompts, texts)
  speed = summarise([p.tokens_per_second for p in passes])
  nfe = sum(r.nfe for r in results)
  return {
    "prompts": len(results),
    "tokens": passes[0].tokens,
    "nfe": nfe,
    "prefill_nfe": sum(r.prefill_nfe for r in results),
    "query_tokens": sum(r.query_tokens for r in results),
    "drafted": sum(r.drafted for r in results),
    "accepted": sum(r.accepted for r in results),
    "tpf": passes[0].tokens / nfe,
    "tokens_per_second": speed.median,
    "tokens_per_second_low": speed.low,
    "tokens_per_second_high": speed.high,
    "prefill_seconds": summarise([p.prefill_seconds for p in passes]).median,
    "decode_seconds": summarise([p.decode_seconds for p in passes]).median,
    "judge_nll": judged.nll_per_token,
    "own_nll": owned and owned.nll_per_token,
    "entropy": owned and owned.entropy_per_token,
    "text_crc32": zlib.crc32(json.dumps(texts).encode()),
    **{f"distinct_{n}": diversity.distinct(texts, n) for n in (1, 2, 3)},
    "repetition": diversity.repetition(texts),
    "ended": sum(r.finish == "eos" for r in results) / len(results),
  }


def run_sweep(points: Sequence[Point], workdir: pathlib.Path, console: Console) -> list[dict]:
  """Measures what `workdir` lacks, appending one line a point; returns all points in order.

  Raises:
    UsageError, DataError, CheckpointError: before anything is measured or written.
  """
  bench = Bench()
  points = [bench.resolved(point) for point in points]
  for point in points:
    bench.check(point)
  workdir = record.open_workdir(str(workdir))
  lines = record.JsonLines(workdir / POINTS)
  about, rows = record.provenance(), []
  for number, point in enumerate(points, 1):
    settings = point.settings(record.fingerprint(bench.model(point.sweep.checkpoint).params))
    key = key_of(settings)
    found = next((r for r in lines.records if key_of(r["settings"]) == key), None)
    if found is None:
      with console.status(f"point {number}/{len(points)}: {describe(point)}"):
        measured = bench.measure(point)
      when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
      found = {"settings": settings, **measured, "time": when, **about}
      lines.append(found)
    else:
      console.print(f"already measured: {describe(point)}", style="bright_black", highlight=False)
    rows.append(found | {"settings": settings})  # the label of now
  return rows


def describe(point: Point) -> str:
  """`name sbd gamma=0.1`: what tells the point from its neighbours."""
  settings = decoders.settings_of(point.decoder)
  telling = ("rule", *decoders.TRACED, "dtau", "draft_steps", "eager", "frugal", "carry")
  shown = [f"{n}={settings[n]}" for n in telling if n in settings]
  return " ".join([point.sweep.label, settings["name"], *shown])


# Heading and width of each column: with these, tables of several models stand in line, and fit 80.
_COLUMNS = {
  "decoder": 11,
  "tokens a\nforward": 8,
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


def conclude(rows: list[dict[str, Any]], workdir: pathlib.Path, console: Console):
  """Prints a table a model and draws the picture."""
  plot.draw_sweep(rows, workdir / PICTURE)
  labels = [row["settings"]["sweep"]["label"] for row in rows]
  for label in dict.fromkeys(labels):
    console.print(table((r for r, of in zip(rows, labels, strict=True) if of == label), label))
  first, judge = rows[0], rows[0]["settings"]["sweep"]["judge"]
  console.print(
    f"{first['prompts']} prompts, batch {first['batch_size']}, {first['device']}. Judge NLL: nats a "
    f"token under {judge}.\nH: mean entropy (nats) of the model's own next tokens; a bound of γ "
    "reveals\nabout 1 + γ/H tokens a forward at most. Repeats: share of 4-grams seen before.",
    style="bright_black",
    highlight=False,
  )
  console.print(f"points: {workdir / POINTS}\nplot:   {workdir / PICTURE}", highlight=False)


def conclude_surface(
  rows: Sequence[dict[str, Any]],
  names: tuple[str, str, str],
  workdir: pathlib.Path,
  console: Console,
):
  """Fits and draws the surface over the points that have both settings; prints where it is best.

  Raises:
    UsageError: no point has them, or too few values of them.
  """

  def setting(row, name):
    section, _, field = name.partition(".")
    return row["settings"].get(section, {}).get(field)

  x_name, y_name, z_name = names
  found = [(setting(r, x_name), setting(r, y_name), r.get(z_name)) for r in rows]
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
  parser.add_argument("--config", required=True, help="config file, FILE.py or FILE.py:VARIANT")
  parser.add_argument("--workdir", required=True, help="folder for points.jsonl and sweep.png")
  args = parser.parse_args(rest)
  config = load_config(args.config, overrides, schema)
  points = [make_point(config, entry) for entry in read_grid(args.config)]
  names = read_surface(args.config)
  console = Console()
  workdir = pathlib.Path(args.workdir).expanduser()
  rows = run_sweep(points, workdir, console)
  conclude(rows, workdir, console)
  if names:
    conclude_surface(rows, names, workdir, console)
  return 0
