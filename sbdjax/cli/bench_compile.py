"""Measure compiling: bench compile [--config=FILE.py] [--depths=2,32] [--programs=NAME,...] [--json]

Seconds to compile the update of a training config, and every sampler for its model, at several
depths of the model: layers are scanned, so depth must not count. Nothing of the model's size is
allocated, so an 8B model needs no memory; the persistent compilation cache is left out. Programs
are train (the config's loss) and the decoder names. Processor seconds are those of all threads:
what can be compared where other work shares the cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import ml_collections
from rich import box
from rich.console import Console
from rich.table import Table

from sbdjax import plain_json
from sbdjax.bench import compiling
from sbdjax.bench.compiling import CompileTiming
from sbdjax.bench.training import make_batch
from sbdjax.cli import flags
from sbdjax.cli.bench_common import build_model, make_update, without_cache
from sbdjax.cli.common import Parser, load_config, split_overrides
from sbdjax.decode import registry
from sbdjax.decode.decoding import Decoding, from_flat
from sbdjax.errors import UsageError
from sbdjax.evals import record
from sbdjax.settings import nearest
from sbdjax.sigma_lm import SigmaLM
from sbdjax.train.settings import Settings, parse_settings, schema

_CONFIG = "preset:llama31_8b_sbd"
TRAIN = "train"


# What a checkpoint would say of the attention it was trained with.
_ATTENTION = dict.fromkeys(("static", "dynamic", "freedave"), "block_causal") | {"mdm": "full"}


def decoding_of(name: str, max_tokens: int) -> Decoding:
  """The method with its own defaults."""
  attention = {"attention": _ATTENTION[name]} if name in _ATTENTION else {}
  return from_flat({registry.METHOD: name, "max_tokens": max_tokens, **attention})


def _sampler_row(
  name: str, settings: Settings, fields: Mapping[str, Any], args: argparse.Namespace
) -> CompileTiming:
  decoding = decoding_of(name, args.max_tokens)
  lm = build_model(
    dict(fields) | {"param_dtype": fields.get("compute_dtype", "float32")},
    causal_blocks=decoding.method.models == (SigmaLM,),
    attention=settings.attention.backend,
  )
  return compiling.time_sampler(
    name,
    lm,
    decoding.method,
    jax.eval_shape(lm.init, jax.random.key(0)),
    decoding.limits(()),
    batch_size=args.batch_size,
    prompt_length=args.prompt_length,
  )


def _update_row(
  settings: Settings, fields: Mapping[str, Any], args: argparse.Namespace
) -> CompileTiming:
  lm = build_model(
    fields,
    causal_blocks=settings.loss.has_head,
    attention=settings.attention.backend,
  )
  update = make_update(lm, settings.loss)
  batch = make_batch(args.batch_size, args.length, lm.config.vocab_size)
  name = f"{TRAIN} {settings.loss_name}"
  return compiling.time_update(name, lm.config.num_layers, update.step, update.state, batch)


def rows(args: argparse.Namespace, config: ml_collections.ConfigDict) -> Iterator[CompileTiming]:
  """Every program at every depth, as they are compiled."""
  settings = parse_settings(config)
  methods = registry.REGISTRY[registry.METHOD]
  names = args.programs.split(",") if args.programs else [TRAIN, *methods]
  for name in names:
    if name != TRAIN and name not in methods:
      raise UsageError(
        f"--programs: unknown program {name!r}{nearest(name, [TRAIN, *methods])}: choose from "
        f"{', '.join([TRAIN, *methods])}"
      )
  if "num_layers" not in settings.model:
    raise UsageError("bench compile needs a config that gives its model's shape (model.num_layers)")
  for name in names:
    for depth in flags.parse_ints(args.depths, "--depths"):
      fields = settings.model | {"num_layers": depth}
      if name == TRAIN:
        yield _update_row(settings, fields, args)
      else:
        yield _sampler_row(name, settings, fields, args)


def show(found: list[CompileTiming], console: Console) -> None:
  """The measurements as a table, one line a program."""
  table = Table(title=f"seconds to compile, {record.device()}", title_justify="left")
  table.box = box.SIMPLE_HEAD
  table.add_column("program")
  depths = sorted({row.num_layers for row in found})
  for depth in depths:
    table.add_column(f"{depth} layers\nwall-clock", justify="right")
    table.add_column("\nprocessor", justify="right")
  for name in dict.fromkeys(row.program for row in found):
    at = {row.num_layers: row for row in found if row.program == name}
    cells = [f"{x:.1f}" for d in depths for x in (at[d].seconds, at[d].cpu_seconds)]
    table.add_row(name, *cells)
  console.print(table)


def _parser() -> Parser:
  parser = Parser(prog="bench compile", description=__doc__)
  add = parser.add_argument
  add("--config", default=_CONFIG, help="training config with the model's shape and the loss")
  add("--depths", default="2,32", help="layers, separated by commas")
  add("--programs", default="", help="separated by commas; empty: all")
  add("--length", type=int, default=1024, help="tokens of a row that the update trains on")
  add("--batch_size", type=int, default=1, help="rows")
  add("--prompt_length", type=int, default=64, help="tokens of a prompt")
  add("--max_tokens", type=int, default=64, help="tokens generated for each prompt")
  add("--json", action="store_true", help="print one JSON object")
  return parser


def main(argv: list[str]) -> int:
  """Runs the benchmark; returns the exit code."""
  rest, overrides = split_overrides(argv)
  args = _parser().parse_args(rest)
  for name in ("length", "prompt_length", "max_tokens"):
    flags.at_least(getattr(args, name), 2, f"--{name}")
  flags.at_least(args.batch_size, 1, "--batch_size")
  with without_cache():
    found = list(rows(args, load_config(args.config, overrides, schema)))
  if args.json:
    kept = ("length", "batch_size", "prompt_length", "max_tokens")
    named = {"bench": "compile", "config": pathlib.Path(args.config).name}
    named |= {name: getattr(args, name) for name in kept}
    print(
      plain_json.dumps(
        named | {"rows": [dataclasses.asdict(r) for r in found]} | record.provenance()
      )
    )
  else:
    show(found, Console())
  return 0
