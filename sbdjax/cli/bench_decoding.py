"""Measure speed: bench decoding [--checkpoint=...] [--batch_sizes=1,32] [--decoder.FIELD=VALUE ...] [--json]

tokens/s of AR and, for a model with a mask token, of SBD, at each batch size; beside
`transformers` generate on the same weights where torch and transformers are installed (the
extra `parity`). Every row generates exactly --max_tokens tokens: an end of text does not stop it.
Speeds are medians of --repeats runs with the slowest and the fastest; compiling and the prompts'
forwards are apart.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from sbdjax.bench import torch_llama
from sbdjax.bench.decoding import Row, time_sampler
from sbdjax.cli import decoders, flags, record
from sbdjax.cli.common import Parser, split_overrides, to_dataclass
from sbdjax.cli.decoders import DecoderConfig
from sbdjax.data.config import DataConfig
from sbdjax.data.sources import load_corpus
from sbdjax.decode.generate import check_context
from sbdjax.errors import DataError, UsageError
from sbdjax.interop.pretrained import Pretrained, load_pretrained


def read_prompts(model: Pretrained, count: int, length: int) -> list[list[int]]:
  """The first `length` tokens of embedded stories, or ids counted up where those do not fit.

  Speed hardly depends on the tokens; a model of another vocabulary gets ids it knows.
  """
  shape = model.lm.config
  if getattr(model.tokenizer, "vocab_size", None) != _STORY_VOCABULARY:
    known = shape.vocab_size - (shape.mask_id is not None)
    return [[(7 * i + j) % known for j in range(length)] for i in range(count)]
  corpus = load_corpus(DataConfig(), "train", model.tokenizer)
  starts = corpus.starts[corpus.lengths > length]
  if not len(starts):
    raise DataError(f"no embedded story has more than --prompt_length={length} tokens: lower it")
  return [
    corpus.tokens[starts[i % len(starts)] :][:length].astype(int).tolist() for i in range(count)
  ]


_STORY_VOCABULARY = 512


def _configs(model: Pretrained, texts: dict[str, str], max_tokens: int) -> list[DecoderConfig]:
  """AR, and SBD with the settings given, where the model can do it."""
  fields = flags.parse_fields(DecoderConfig, texts, "decoder")
  for name in ("name", "max_tokens"):
    if name in fields:
      raise UsageError(f"bench times every method: leave out --decoder.{name} (see --max_tokens)")
  if model.lm.config.mask_id is None:
    if fields:
      raise UsageError("this checkpoint has no mask token, so only AR is timed: drop --decoder.*")
    return [DecoderConfig(name="ar", max_tokens=max_tokens)]
  fixed = {"max_tokens": max_tokens}
  timed = to_dataclass(DecoderConfig, {"name": "sbd"} | fixed | fields, "decoder")
  timed = decoders.for_checkpoint(timed, model.generation, fields)
  decoders.check_used(timed, fields)
  return [DecoderConfig(name="ar", **fixed), timed]


def _time_ours(
  model: Pretrained, config: DecoderConfig, prompts: list[list[int]], repeats: int
) -> tuple[Row, list[list[int]]]:
  shown = " ".join(
    f"{k}={v}"
    for k, v in decoders.settings_of(config).items()
    if k not in ("name", "max_tokens", "temperature")
  )
  return time_sampler(
    f"{config.name} {shown}".strip(),
    lambda numbers: decoders.make_sampler(model.lm, config, (), numbers),
    model.params,
    prompts,
    numbers=decoders.numbers_of(config),
    repeats=repeats,
  )


def agreement(ours: list[list[int]], theirs: list[list[int]]) -> float:
  """Share of positions with the same token."""
  pairs = [(a, b) for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True)]
  return sum(a == b for a, b in pairs) / len(pairs)


def decoding(args: argparse.Namespace, texts: dict[str, str]) -> dict[str, Any]:
  """Times everything; returns the record that --json prints."""
  sizes = flags.parse_ints(args.batch_sizes, "--batch_sizes")
  for name in ("max_tokens", "prompt_length"):
    flags.at_least(getattr(args, name), 2, f"--{name}")
  flags.at_least(args.repeats, 5, "--repeats")
  model = load_pretrained(args.checkpoint, dtype=args.dtype)
  shape = model.lm.config
  configs = _configs(model, texts, args.max_tokens)
  prompts = read_prompts(model, max(sizes), args.prompt_length)
  check_context(prompts, args.max_tokens, shape.max_seq_len, shape.vocab_size)
  with_torch = torch_llama.is_available() and not args.no_torch
  rows, agreements = [], {}
  for size in sizes:
    texts_of = {}
    for config in configs:
      row, texts_of[config.name] = _time_ours(model, config, prompts[:size], args.repeats)
      rows.append(row)
    for threads in sorted({1, os.cpu_count() or 1}) if with_torch else ():
      row, tokens = torch_llama.time_generate(
        shape, model.params, prompts[:size], args.max_tokens, args.repeats, threads
      )
      rows.append(row)
      agreements[str(size)] = agreement(texts_of["ar"], tokens)
  versions = {n: importlib.metadata.version(n) for n in ("torch", "transformers") if with_torch}
  return {
    "bench": "decoding",
    "checkpoint": args.checkpoint,
    "dtype": shape.compute_dtype,
    "prompt_length": args.prompt_length,
    "max_tokens": args.max_tokens,
    "rows": [dataclasses.asdict(row) for row in rows],
    "same_greedy_tokens_as_transformers": agreements,
    **record.provenance(),
    "transformers": versions,
  }


def show_decoding(found: dict[str, Any], console: Console):
  """The record as a table, each speed beside AR's of the same batch size."""
  title = f"{found['checkpoint']}, {found['max_tokens']} tokens a prompt, {found['device']}"
  table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
  table.add_column("decoder", max_width=34)
  for head in ("batch", "tokens/s\nmedian", "slowest\nfastest", "x AR", "TPF", "compile\nseconds"):
    table.add_column(head, justify="right", no_wrap=True)
  reference = {
    row["batch_size"]: row["tokens_per_second"] for row in found["rows"] if row["decoder"] == "ar"
  }
  for entry in found["rows"]:
    row = Row(**entry)
    table.add_row(
      row.decoder,
      str(row.batch_size),
      f"{row.tokens_per_second:,.0f}",
      f"{row.low:,.0f}\n{row.high:,.0f}",
      f"{row.tokens_per_second / reference[row.batch_size]:.2f}",
      f"{row.tokens_per_forward:.2f}",
      "-" if row.compile_seconds is None else f"{row.compile_seconds:.1f}",
    )
  console.print(table)
  for size, share in found["same_greedy_tokens_as_transformers"].items():
    console.print(f"batch {size}: {share:.1%} of AR's tokens equal those of transformers")


def _parser() -> Parser:
  parser = Parser(prog="bench decoding", description=__doc__)
  add = parser.add_argument
  add("--checkpoint", default="stories260K", help="embedded name, checkpoint file or workdir")
  add("--batch_sizes", default="1,32", help="prompts decoded together, separated by commas")
  add("--max_tokens", type=int, default=200, help="tokens generated for each prompt")
  add("--prompt_length", type=int, default=16, help="tokens of each prompt")
  add("--repeats", type=int, default=5, help="timed runs, at least 5")
  add("--dtype", choices=("float32", "bfloat16", "float16"), help="instead of the checkpoint's")
  add("--no_torch", action="store_true", help="leave out transformers even if it is installed")
  add("--json", action="store_true", help="print one JSON object")
  return parser


def main(argv: list[str]) -> int:
  """Runs the benchmark; returns the exit code."""
  rest, texts = split_overrides(argv, "decoder")
  args = _parser().parse_args(rest)
  found = decoding(args, texts)
  if args.json:
    print(json.dumps(found))
  else:
    show_decoding(found, Console())
  return 0
