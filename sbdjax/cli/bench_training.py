"""Measure training: bench training [--lengths=128,256] [--vocabularies=1024,8192] [--loss=sbd] [--json]

Time and peak memory of one update (forward, backward, AdamW) of a random model, for every length
and every vocabulary. The model is small unless --model.FIELD=VALUE says otherwise (fields of
TransformerConfig, such as --model.num_layers=4 or --model.remat=full); --loss.FIELD=VALUE sets a
field of the loss. Medians of --repeats updates with the fastest and the slowest, compiling apart.
Memory is what the device reports, or what the compiled program needs where it reports nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from sbdjax import losses
from sbdjax.bench.training import TrainingTiming, make_batch, time_step
from sbdjax.cli import flags
from sbdjax.cli.bench_common import build_model, make_update, report, uses_cache
from sbdjax.cli.common import Parser, split_overrides
from sbdjax.errors import UsageError
from sbdjax.evals import record
from sbdjax.kernels import backend
from sbdjax.nn.config import check_attention
from sbdjax.nn.transformer import TransformerConfig
from sbdjax.settings import to_dataclass

_SMALL = dict(num_layers=2, d_model=128, num_heads=4, num_kv_heads=2, d_ff=344)
# Fields of the model that differ from row to row, and the flag that they follow.
_LISTED = dict(vocab_size="--vocabularies", mask_id="--vocabularies", max_seq_len="--lengths")


def measure(
  args: argparse.Namespace, model: dict[str, str], loss: Mapping[str, str]
) -> dict[str, Any]:
  """Times everything; returns the record that --json prints.

  Args:
    args: parsed flags.
    model, loss: fields given as text.

  Raises:
    UsageError: a flag that is out of range, or a field of the model that differs from row to row.
  """
  lengths = flags.parse_ints(args.lengths, "--lengths")
  vocabularies = flags.parse_ints(args.vocabularies, "--vocabularies")
  for flag, value, least in (
    ("--repeats", args.repeats, 3),
    ("--batch_size", args.batch_size, 1),
    ("--lengths", min(lengths), 2),
    ("--vocabularies", min(vocabularies), 2),
  ):
    flags.at_least(value, least, flag)
  for name, flag in _LISTED.items():
    if name in model:
      raise UsageError(f"leave out --model.{name}: it follows {flag}, row by row")
  cls = losses.get(args.loss, "--loss")
  # Its name while it was a field of the model.
  attention = model.pop("attention_backend", args.attention)
  check_attention(attention, "--attention")
  shape = _SMALL | flags.parse_fields(TransformerConfig, model, "model")
  settings: Any = to_dataclass(cls, flags.parse_fields(cls, loss, "loss"), "loss")
  rows = []
  # The smallest first: what a device reports as its peak never falls.
  for vocab_size, length in itertools.product(sorted(vocabularies), sorted(lengths)):
    sizes = dict(vocab_size=vocab_size, mask_id=vocab_size - 1, max_seq_len=length)
    lm = build_model(sizes | shape, causal_blocks=cls.has_head, attention=attention)
    update = make_update(lm, settings)
    batch = update.layout.place(make_batch(args.batch_size, length, vocab_size - 1))
    rows.append(time_step(update.step, update.init(), batch, vocab_size, args.repeats))
  return {
    "bench": "training",
    "loss": args.loss,
    "loss_settings": dataclasses.asdict(settings),
    "model": shape,
    "batch_size": args.batch_size,
    "rows": [dataclasses.asdict(row) for row in rows],
    "compilation_cache": uses_cache(),
    **record.provenance(),
  }


def show(found: dict[str, Any], console: Console) -> None:
  """The record as a table."""
  shape = found["model"]
  title = (
    f"{found['loss']} loss, batch {found['batch_size']}, {shape['num_layers']} layers of "
    f"{shape['d_model']}, {found['device']}"
  )
  table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
  heads = ("L", "V", "parameters\nmillions", "ms\nmedian", "fastest\nslowest", "tokens/s")
  for head in (*heads, "peak\nMiB", "compile\nseconds"):
    table.add_column(head, justify="right", no_wrap=True)
  for entry in found["rows"]:
    row = TrainingTiming(**entry)
    table.add_row(
      str(row.length),
      str(row.vocab_size),
      f"{row.num_params / 1e6:.2f}",
      f"{1e3 * row.seconds:.1f}",
      f"{1e3 * row.low:.1f}\n{1e3 * row.high:.1f}",
      f"{row.tokens_per_second:,.0f}",
      f"{row.peak_bytes / 2**20:,.0f}",
      f"{row.compile_seconds:.1f}",
    )
  console.print(table)
  sources = sorted({row["peak_source"] for row in found["rows"]})
  said = {"device": "reported by the device", "compiled": "as the programs were compiled"}
  console.print(f"peak: {' or '.join(said[s] for s in sources)}")


def _parser() -> Parser:
  parser = Parser(prog="bench training", description=__doc__)
  add = parser.add_argument
  add("--lengths", default="128,256", help="tokens of a row, separated by commas")
  add("--vocabularies", default="1024,8192", help="sizes of the vocabulary, separated by commas")
  add("--batch_size", type=int, default=2, help="rows of a batch")
  add("--loss", choices=losses.names(), default="sbd", help="what is trained")
  add("--attention", default="auto", help=f"how it is computed: {', '.join(backend.NAMES)}")
  add("--repeats", type=int, default=5, help="timed updates, at least 3")
  add("--json", action="store_true", help="print one JSON object")
  return parser


def main(argv: list[str]) -> int:
  """Runs the benchmark; returns the exit code."""
  rest, model = split_overrides(argv, "model")
  rest, loss = split_overrides(rest, "loss")
  args = _parser().parse_args(rest)
  found = measure(args, model, loss)
  report(found, args.json, show)
  return 0
