"""Settings given as flags alone (`--section.field=value`), without a config file."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
from collections.abc import Mapping
from typing import Any

from sbdjax import hosts, share
from sbdjax.decode import flat_names
from sbdjax.decode.decoding import MAX_TOKENS, Decoding, from_flat
from sbdjax.errors import UsageError
from sbdjax.hosts import Job
from sbdjax.interop.pretrained import MIXED, STORED
from sbdjax.settings import LARGEST_INT, field_types, nearest, parse_value
from sbdjax.share import Share

# Of --dtype, where a checkpoint is decoded.
DTYPES = ("float32", "bfloat16", "float16", MIXED, STORED)
CHECKPOINT_HELP = "embedded name, checkpoint file, training workdir or Hugging Face directory"
DTYPE_HELP = (
  "default: the checkpoint's, on a CPU float32; stored: the checkpoint's; "
  "mixed: weights and their products in bfloat16, all else in float32"
)


def add_checkpoint(parser: argparse.ArgumentParser, help: str = "", **kwargs: Any) -> None:
  """Adds --checkpoint, and --adapter for an adapter of its model.

  Args:
    help: of --checkpoint; "": what it may be.
    kwargs: as of `add_argument`, for --checkpoint.
  """
  parser.add_argument("--checkpoint", help=help or CHECKPOINT_HELP, **kwargs)
  parser.add_argument("--adapter", help="file of an adapter of that checkpoint's model")


def parse_fields(cls: type, texts: Mapping[str, str], where: str) -> dict[str, Any]:
  """{"field": "text"} read as the types of the dataclass `cls`.

  Raises:
    UsageError: a field that `cls` does not have (the nearest is named), or a value of another type.
  """
  fields = field_types(cls)
  for name in texts:
    if name not in fields:
      raise UsageError(
        f"unknown field {where}.{name}{nearest(name, fields)}: choose from {', '.join(fields)}"
      )
  return {name: parse_value(text, fields[name], f"{where}.{name}") for name, text in texts.items()}


def parse_ints(text: str, flag: str) -> tuple[int, ...]:
  """ "1,32" -> (1, 32), all at least 1. Raises UsageError for anything else."""
  try:
    values = tuple(int(part) for part in text.split(","))
  except ValueError:
    values = ()
  if not values or min(values) < 1:
    raise UsageError(f"{flag}={text}: give numbers from 1 on, separated by commas, like 1,32")
  return values


def at_least(value: int, least: int, flag: str, most: int = LARGEST_INT) -> int:
  """`value`, or a UsageError where it is below `least` or above `most`."""
  if value < least:
    raise UsageError(f"{flag}={value}: give {least} or more")
  if value > most:
    raise UsageError(f"{flag}={value}: give {most} or less")
  return value


def add_shard(parser: argparse.ArgumentParser, what: str) -> None:
  """Adds --shard, which `shard_of` reads.

  Args:
    what: is shared out, for the help: "prompts", ...
  """
  parser.add_argument(
    "--shard",
    "--part",
    metavar="I/N",
    help=f"this process does every N-th of the {what}; auto: as the cluster says (Slurm, Open MPI, "
    "Kubernetes, Cloud TPU); default: all, under `launch` its share",
  )


def shard_of(text: str | None) -> Share:
  """--shard, or without it what the environment says. Raises UsageError."""
  if text is None:
    return share.of_process()
  return hosts.detected() if text == "auto" else share.parse(text)


def add_job(parser: argparse.ArgumentParser) -> None:
  """Adds the flags of several processes that compute together, which `join` reads."""
  add = parser.add_argument_group("several processes (see `launch`)").add_argument
  add(
    "--distributed",
    action="store_true",
    help="join the others, whom JAX finds: Cloud TPU, Slurm, Open MPI, Kubernetes",
  )
  add("--coordinator", metavar="HOST:PORT", help="join the others: an address of process 0")
  add("--processes", type=int, metavar="N", help="how many there are")
  add("--process", type=int, metavar="I", help="which one this is, 0 first")
  add(
    "--lost_after",
    type=int,
    metavar="SECONDS",
    default=hosts.LOST_AFTER,
    help="a process that was not heard of for so long is dead, and the others end "
    f"(default {hosts.LOST_AFTER})",
  )


def join(args: argparse.Namespace, *, stoppable: bool = False) -> None:
  """Joins the other processes, where the flags or the environment name any; see `hosts.join`.

  Raises:
    UsageError, JobError: they cannot be found.
  """
  at_least(args.lost_after, 1, "--lost_after")
  named = Job(args.coordinator, args.processes, args.process)
  job = named if named != Job() else hosts.given() or (Job() if args.distributed else None)
  if job is not None:
    hosts.join(job, stoppable=stoppable, lost_after=args.lost_after)


def parse_token_lists(text: str, flag: str) -> list[list[int]]:
  """ "[[1,2],[3]]" -> lists of ids. Raises UsageError for anything else."""
  try:
    lists = json.loads(text)
  except (ValueError, RecursionError):
    lists = None
  if isinstance(lists, list) and all(isinstance(row, list) for row in lists):
    if all(type(token) is int for row in lists for token in row):
      return lists
  shown = text if len(text) <= 60 else f"{text[:57]}..."
  raise UsageError(f"{flag}={shown}: give one list of token ids per prompt, like [[1,2],[3]]")


@functools.cache  # the points of a sweep repeat names
def note(line: str) -> None:
  """Tells a user once about a name of an earlier release."""
  print(f"note: {line}", file=sys.stderr)


def decoding_of(texts: Mapping[str, str]) -> Decoding:
  """The settings of `--decoder.field=text` flags.

  Raises:
    UsageError: an unknown field, one without effect on this method, or a value out of range.
  """
  return from_flat(texts, parse_value, "decoder", note)


def modern_overrides(overrides: Mapping[str, str]) -> dict[str, str]:
  """`--config.decoder.field=text` flags with names of earlier releases replaced."""
  start = "decoder."
  of_decoder = {n.removeprefix(start): t for n, t in overrides.items() if n.startswith(start)}
  others = {n: t for n, t in overrides.items() if not n.startswith(start)}
  values = flat_names.modern(of_decoder, "config.decoder", note)
  return others | {start + name: text for name, text in values.items()}


def decoder_schema(given: Mapping[str, Any]) -> type:
  """The flat names of all methods as a dataclass, for overrides of a config's section `decoder`."""
  types = flat_names.field_types(given) | {MAX_TOKENS: int}
  return dataclasses.make_dataclass("Decoder", [(n, t, None) for n, t in types.items()])
