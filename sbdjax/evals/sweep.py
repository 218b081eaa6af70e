"""Measuring a grid of decoders: quality and forwards of every point, then the speeds of all in turns.

A point is a JSON line of points.jsonl with the sums of every text, which nothing else on the machine
can change. Speeds are a line of speeds.jsonl for the whole grid, timed in one run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from sbdjax import prompts as prompting
from sbdjax import workdir_lock
from sbdjax.bench.timing import Pass, TimedDecoder
from sbdjax.data import assets, files
from sbdjax.data.config import DataConfig
from sbdjax.data.sources import load_corpus
from sbdjax.decode import flat_names
from sbdjax.decode.decoding import Decoding, from_flat
from sbdjax.decode.generate import check_context
from sbdjax.errors import DataError, UsageError
from sbdjax.evals import paired, record, speeds
from sbdjax.evals.judge import Judge
from sbdjax.evals.measured import measurements
from sbdjax.evals.shared_lines import SharedLines
from sbdjax.interop.pretrained import Pretrained, load_pretrained
from sbdjax.settings import nearest, to_dataclass
from sbdjax.share import WHOLE, Share

POINTS, SPEEDS = "points.jsonl", "speeds.jsonl"


@dataclasses.dataclass(frozen=True)
class SweepConfig:
  """What is measured, and on what.

  Attributes:
    checkpoint: the model that decodes.
    adapter: file of an adapter of it; empty: none.
    label: a name of it for tables and plots; empty becomes `checkpoint`.
    judge: the model under which the text is scored; empty becomes `checkpoint`.
    prompts: file with a prompt a line, or .jsonl with the field `prompt`; empty: the beginnings of
      documents of the section `data`.
    num_prompts: the first long enough documents; of a file, so many of its prompts at most.
    prompt_tokens: tokens of each prompt, bos included; those of a file are taken whole.
    split: of the data: "train", "validation" or "test". The one that no choice was made on says
      most.
    batch_size: prompts decoded together.
    repeats: turns in which all points are timed; of the seconds of a batch the median counts. 0:
      no speeds, on a machine that does other things as well.
    timed_prompts: the first of them, which all points decode in every turn.
    seed: of the noise at temperature > 0.
  """

  checkpoint: str
  adapter: str = ""
  label: str = ""
  judge: str = ""
  prompts: str = ""
  num_prompts: int = 240
  prompt_tokens: int = 16
  split: str = "test"
  batch_size: int = 1
  repeats: int = 3
  timed_prompts: int = 32
  seed: int = 0

  def __post_init__(self) -> None:
    for name in ("label", "judge"):
      if not getattr(self, name):
        object.__setattr__(self, name, self.checkpoint)
    for name in ("num_prompts", "prompt_tokens", "batch_size", "timed_prompts"):
      if getattr(self, name) < 1:
        raise UsageError(f"sweep.{name}={getattr(self, name)} must be at least 1")
    if self.repeats < 0:
      raise UsageError(f"sweep.repeats={self.repeats}: give 0 (nothing is timed) or more")


SECTIONS = ("sweep", "decoder", "data")


class Point(NamedTuple):
  """One setting of the grid."""

  sweep: SweepConfig
  decoding: Decoding
  data: DataConfig

  def settings(self, fingerprint: int) -> dict[str, Any]:
    """Everything the outcome depends on besides program and machine."""
    return {
      "sweep": dataclasses.asdict(self.sweep),
      "decoder": self.decoding.flat(),
      "data": dataclasses.asdict(self.data),
      "weights_crc32": fingerprint,
    }


# Settings that no text depends on.
_NO_OUTCOME = ("label", "repeats", "timed_prompts")


def key_of(settings: Mapping[str, Any]) -> str:
  """Equal for settings with the same texts: all but the label and what concerns timing."""
  sweep = {name: value for name, value in settings["sweep"].items() if name not in _NO_OUTCOME}
  for name in ("adapter", "prompts"):  # as in records of before there were any
    if not sweep.get(name):
      sweep.pop(name, None)
  decoder = flat_names.modern(settings["decoder"])
  if decoder.get("lookup") == "none":  # as in records of before there was any
    del decoder["lookup"]
  return json.dumps({**settings, "sweep": sweep, "decoder": decoder}, sort_keys=True)


def make_point(
  base: Mapping[str, Any],
  overrides: Mapping[str, Any],
  note: Callable[[str], None] = lambda text: None,
  needed: Collection[str] = (),
) -> Point:
  """The base configuration with one entry of the grid.

  Args:
    base: section -> its fields. What the base says of a decoder that the entry does not use is
      left out.
    overrides: like {"decoder.gamma": 0.1}.
    note: is told of names of earlier releases.
    needed: fields of the base's decoder that must have an effect, too.

  Raises:
    UsageError: an unknown section or field, a wrong value, or an override without effect.
  """
  for name in base:
    if name not in SECTIONS:
      raise UsageError(
        f"unknown section config.{name}{nearest(name, SECTIONS)}: a sweep has {', '.join(SECTIONS)}"
      )
  changes: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
  for name, value in overrides.items():
    section, _, field = name.partition(".")
    if section not in SECTIONS or not field:
      raise UsageError(f"get_sweep gives {name!r}: overrides are named like decoder.gamma")
    changes[section][field] = value
  sections = {name: dict(base.get(name, {})) for name in SECTIONS}
  for of in (sections, changes):
    of["decoder"] = flat_names.modern(of["decoder"], note=note)
  values = {name: sections[name] | changes[name] for name in SECTIONS}
  # What the base says must exist, and may be of another method than that of the entry.
  exists = flat_names.field_types(sections["decoder"]).keys() & sections["decoder"].keys()
  return Point(
    to_dataclass(SweepConfig, values["sweep"], "sweep"),
    from_flat(values["decoder"], spare=exists - {*changes["decoder"], *needed}),
    to_dataclass(DataConfig, values["data"], "data"),
  )


def check_used(
  base: Mapping[str, Any], grid: Sequence[Mapping[str, Any]], names: Iterable[str]
) -> None:
  """Raises UsageError where one of the base's decoder fields `names` has no effect on any point."""
  for name in names:
    refusals = [_refusal(base, entry, name) for entry in grid]
    if all(refusals):
      raise UsageError(str(refusals[0]))


def _refusal(base: Mapping[str, Any], entry: Mapping[str, Any], needed: str) -> UsageError | None:
  try:
    make_point(base, entry, needed={needed})
  except UsageError as e:
    return e
  return None


class Bench:
  """Opens each model and compiles each decoder once for all points."""

  def __init__(self) -> None:
    self._models: dict[tuple[str, str], Pretrained] = {}
    self._judges: dict[tuple[str, str], Judge] = {}
    self._decoders: dict[Any, TimedDecoder] = {}
    self._prompts: dict[Any, list[list[int]]] = {}

  def model(self, name: str, adapter: str = "") -> Pretrained:
    key = (name, adapter)
    if key not in self._models:
      self._models[key] = load_pretrained(name, adapter=adapter or None)
    return self._models[key]

  def decoding(self, point: Point) -> Pretrained:
    """The model that decodes a point."""
    return self.model(point.sweep.checkpoint, point.sweep.adapter)

  def judging(self, point: Point) -> tuple[str, str]:
    """Name and adapter of the model that scores a point's text; an adapter changes no score."""
    sweep = point.sweep
    return sweep.judge, sweep.adapter if sweep.judge == sweep.checkpoint else ""

  def judge(self, name: str, adapter: str = "") -> Judge:
    key = (name, adapter)
    if key not in self._judges:
      model = self.model(*key)
      self._judges[key] = Judge(model.lm, model.params)
    return self._judges[key]

  def decoder(self, point: Point) -> TimedDecoder:
    """Shared by all points of one model and length: it compiles once per program."""
    model = self.decoding(point)
    key = (point.sweep.checkpoint, point.sweep.adapter, point.decoding.max_tokens)
    if key not in self._decoders:
      limits = point.decoding.limits(model.generation.eos_ids)
      self._decoders[key] = TimedDecoder(model.lm, limits)
    return self._decoders[key]

  def prompts(self, point: Point) -> list[list[int]]:
    """The first tokens of documents that are longer than that.

    Raises:
      UsageError: the checkpoint has no tokenizer.
      DataError: fewer such documents than asked for.
    """
    sweep, tokenizer = point.sweep, self.decoding(point).need_tokenizer()
    chosen = (sweep.prompts, sweep.split, sweep.prompt_tokens, sweep.num_prompts)
    key = (point.data, *chosen, tokenizer.vocab_size)
    if key not in self._prompts and sweep.prompts:
      texts = files.read_prompts(assets.resolve(sweep.prompts))[: sweep.num_prompts]
      self._prompts[key] = [prompting.encode(tokenizer, text) for text in texts]
    if key not in self._prompts:
      corpus = load_corpus(point.data, sweep.split, tokenizer)
      length, wanted = sweep.prompt_tokens, sweep.num_prompts
      starts = corpus.starts[corpus.lengths > length][:wanted]
      if len(starts) < wanted:
        raise DataError(
          f"{corpus.origin}: {len(starts)} documents are longer than sweep.prompt_tokens={length}: "
          f"lower sweep.num_prompts={wanted}, or name a file of more (data.path)"
        )
      self._prompts[key] = [corpus.tokens[s : s + length].astype(int).tolist() for s in starts]
    return self._prompts[key]

  def resolved(self, point: Point) -> Point:
    """`point` with what its checkpoint says of how it is decoded."""
    model = self.decoding(point)
    return point._replace(decoding=point.decoding.for_model(model.lm, model.generation))

  def check(self, point: Point) -> None:
    """Raises the error that measuring the point would meet, before anything is run or written."""
    model = self.decoding(point)
    point.decoding.method.sampler(model.lm, point.decoding.limits(model.generation.eos_ids))
    shape = model.lm.config
    prompts = self.prompts(point)
    check_context(prompts, point.decoding.max_tokens, shape.max_seq_len, shape.vocab_size)
    judge = self.model(*self.judging(point))
    record.check_same_vocabulary(model, judge, point.sweep.judge)
    total = max(map(len, prompts)) + point.decoding.max_tokens
    if total > judge.lm.config.max_seq_len:
      raise UsageError(
        f"the judge reads at most {judge.lm.config.max_seq_len} tokens; prompt and text may have "
        f"{total}: lower decoder.max_tokens"
      )

  def runner(self, point: Point) -> Callable[[speeds.Prompts], Pass]:
    """Decodes prompts as a point says."""
    decoder, params = self.decoder(point), self.decoding(point).params
    method, key = point.decoding.method, jax.random.key(point.sweep.seed)
    return lambda prompts: decoder.run(method, params, prompts, key, point.sweep.batch_size)

  def measure(self, point: Point) -> dict[str, Any]:
    """Decodes and scores; see `measurements` for the fields."""
    sweep, model, decoder = point.sweep, self.decoding(point), self.decoder(point)
    compiled_before = decoder.compile_seconds
    done = self.runner(point)(self.prompts(point))
    judge = self.judge(*self.judging(point))
    # A model that was not trained as a next-token model has no such distribution.
    causal = model.generation.attention == "causal"
    own = self.judge(sweep.checkpoint, sweep.adapter) if causal else None
    return {
      "compile_seconds": decoder.compile_seconds - compiled_before,
      **measurements(done.results, judge, own),
      "dtype": model.lm.config.precision,
      "batch_size": sweep.batch_size,
    }

  def time(self, points: Sequence[Point], measuring: Callable[[str], None]) -> list[dict[str, Any]]:
    """Seconds of all points in turns; see `speeds.in_turns`. All have the settings of the first."""
    sweep = points[0].sweep
    each = speeds.batches(self.prompts(points[0])[: sweep.timed_prompts], sweep.batch_size)
    return speeds.in_turns([self.runner(p) for p in points], each, sweep.repeats, measuring)


def run_sweep(
  points: Sequence[Point],
  workdir: pathlib.Path,
  measuring: Callable[[str], None],
  skipped: Callable[[str], None],
  share: Share = WHOLE,
  bench: Bench | None = None,
) -> list[dict] | None:
  """Measures what `workdir` lacks, appending one line per point; returns all points in order.

  Args:
    measuring: is told, in a line, what is measured next.
    skipped: is told what is measured already.
    share: of the points, that this process measures; the last to end times all of them.
    bench: which has opened models already, perhaps.

  Returns:
    The records, with `speed` and `tokens_per_second` where points were timed (`sweep.repeats`).
    None where other processes still measure.

  Raises:
    UsageError, DataError, CheckpointError: before anything is measured or written.
  """
  bench = bench or Bench()
  points = [bench.resolved(point) for point in points]
  for point in points:
    bench.check(point)
  _check_timed_alike(points)
  workdir = record.open_workdir(str(workdir))
  with workdir_lock.hold(workdir, "sweep", share.name):
    _measure(bench, points, SharedLines(workdir / POINTS, share), measuring, skipped, share)
    if not share.name:
      return _conclude(bench, points, workdir, measuring, skipped)
  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(workdir_lock.hold(workdir, "sweep"))
    except UsageError:  # another process has not ended, and will see what this one has written
      return None
    return _conclude(bench, points, workdir, measuring, skipped)


def _measure(
  bench: Bench,
  points: Sequence[Point],
  lines: SharedLines,
  measuring: Callable[[str], None],
  skipped: Callable[[str], None],
  share: Share,
) -> None:
  """Measures what is missing of this share of checked points."""
  about = record.provenance()
  for number, point in enumerate(points):
    if not share.has(number):
      continue
    settings = _settings(bench, point)
    if _found(lines, settings) is not None:
      skipped(describe(point))
      continue
    measuring(f"point {number + 1}/{len(points)}: {describe(point)}")
    lines.append({"settings": settings, **bench.measure(point), "time": _now(), **about})


def _found(lines: SharedLines, settings: dict[str, Any]) -> dict[str, Any] | None:
  """The record of a point with these settings."""
  key = key_of(settings)
  return next((r for r in lines.records if key_of(r["settings"]) == key), None)


def _conclude(
  bench: Bench,
  points: Sequence[Point],
  workdir: pathlib.Path,
  measuring: Callable[[str], None],
  skipped: Callable[[str], None],
) -> list[dict] | None:
  """The rows of all points in one file, with their speeds; None while some are missing."""
  lines = SharedLines(workdir / POINTS)
  every = [_settings(bench, point) for point in points]
  found = [row for s in every if (row := _found(lines, s)) is not None]
  if len(found) < len(points):
    return None
  lines.join(found)
  rows = [row | {"settings": s} for row, s in zip(found, every, strict=True)]  # the label of now
  if points[0].sweep.repeats:
    timed = _time(bench, points, record.JsonLines(workdir / SPEEDS), measuring, skipped)
    rows = paired.with_speeds(rows, timed)
  return rows


def _settings(bench: Bench, point: Point) -> dict[str, Any]:
  settings = point.settings(record.fingerprint(bench.decoding(point).params))
  if point.sweep.prompts:  # a file may change
    settings["prompts_crc32"] = zlib.crc32(json.dumps(bench.prompts(point)).encode())
  return settings


def _time(
  bench: Bench,
  points: Sequence[Point],
  lines: record.JsonLines,
  measuring: Callable[[str], None],
  skipped: Callable[[str], None],
) -> dict[str, Any]:
  """The record of one timing run of all points: that of `lines`, or a new one."""
  every = [_settings(bench, point) for point in points]
  how = {name: every[0]["sweep"][name] for name in _TIMING}
  keys = [key_of(settings) for settings in every]
  for found in lines.records[::-1]:
    if found["settings"] == how and [key_of(p["settings"]) for p in found["points"]] == keys:
      skipped("speeds")
      return found
  measured = bench.time(points, measuring)
  found = {
    "settings": how,
    "points": [{"settings": s, **m} for s, m in zip(every, measured, strict=True)],
    "time": _now(),
    **record.provenance(),
  }
  lines.append(found)
  return found


# Settings of a timing run, which all points of a grid share, and those that choose its prompts.
_TIMING = ("batch_size", "repeats", "timed_prompts")
_TIMED_ALIKE = (*_TIMING, "prompts", "num_prompts", "prompt_tokens", "split")


def _check_timed_alike(points: Sequence[Point]) -> None:
  first = points[0].sweep
  for name in _TIMED_ALIKE if first.repeats else ():
    others = {getattr(p.sweep, name) for p in points} - {getattr(first, name)}
    if others:
      raise UsageError(
        f"points with sweep.{name}={getattr(first, name)} and {others.pop()} cannot be timed in "
        "turns: give them the same, or time nothing (sweep.repeats=0)"
      )


def _now() -> str:
  return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def describe(point: Point) -> str:
  """`label sbd gamma=0.2`: what tells the point from its neighbours."""
  changed = flat_names.changed(point.decoding.method)
  shown = [f"{name}={value}" for name, value in changed.items()]
  return " ".join([point.sweep.label, point.decoding.name, *shown])
