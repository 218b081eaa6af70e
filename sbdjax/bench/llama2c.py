"""llama2.c's run.c on our weights: the user's copy, compiled here and run as a program of its own.

It gets a vocabulary in which the text of a token is its number in our model, so that what it prints
are the very tokens. run.c starts from its token 1 and ends a text where token 1 comes up again:
row 1 of its files is therefore the token that the text starts from, whichever that is in our model.

Its clock starts after the first token and counts whole milliseconds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sbdjax.bench.peers import Turn
from sbdjax.data.llama2c_tokenizer import vocabulary_file
from sbdjax.errors import UsageError
from sbdjax.interop import llama2c
from sbdjax.nn import adapter
from sbdjax.nn.transformer import TransformerConfig

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-Ofast", "-march=native", "-fopenmp")
_BOS = 1  # of run.c
_SPEED = re.compile(r"achieved tok/s: (\S+)")


class Program(NamedTuple):
  """A compiled run.c with its files.

  Attributes:
    binary, checkpoint, vocabulary: where they lie.
    start: our token that a text starts from.
  """

  binary: pathlib.Path
  checkpoint: pathlib.Path
  vocabulary: pathlib.Path
  start: int


def find_source(path: str) -> pathlib.Path:
  """run.c, which a user names, or its folder. Raises UsageError where there is none."""
  given = pathlib.Path(path).expanduser()
  source = given / "run.c" if given.is_dir() else given
  if not source.is_file():
    raise UsageError(
      f"--llama2c={path}: no such file {source}: name llama2.c's run.c or its folder"
    )
  return source


def find_compiler() -> str | None:
  """The first C compiler on the path."""
  return next(filter(None, map(shutil.which, COMPILERS)), None)


def versions(source: pathlib.Path, compiler: str) -> dict[str, str]:
  """What a record says of the program: the compiler, its flags, and run.c's checksum."""
  told = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
  return {
    "compiler": told.split("\n")[0],
    "flags": " ".join(FLAGS),
    "run.c sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
  }


def compile_source(source: pathlib.Path, compiler: str, folder: pathlib.Path) -> pathlib.Path:
  """The program in `folder`. Raises UsageError with the compiler's first error."""
  binary = folder / "run"
  command = [compiler, *FLAGS, "-o", str(binary), str(source), "-lm"]
  done = subprocess.run(command, capture_output=True, text=True)
  if done.returncode:
    lines = done.stderr.splitlines() or [f"exit code {done.returncode}"]
    first = next((line for line in lines if "error" in line), lines[0])
    raise UsageError(f"{compiler} cannot compile {source}: {first}")
  return binary


def rows_of(config: TransformerConfig, start: int) -> np.ndarray:
  """Our tokens in the order of its rows: `start` is row 1; what is never predicted is left out."""
  used = [i for i in range(config.vocab_size - config.unused_rows) if i != config.mask_id]
  used.remove(start)
  used.insert(_BOS, start)
  return np.asarray(used)


def prepare(
  binary: pathlib.Path,
  folder: pathlib.Path,
  config: TransformerConfig,
  params: Mapping[str, Any],
  start: int,
  positions: int,
) -> Program:
  """Writes our weights and the vocabulary for a compiled run.c.

  Args:
    start: the token that texts start from; not the mask token.
    positions: of the longest text, which its cache has room for.

  Raises:
    UsageError: run.c has no such network.
  """
  rows = rows_of(config, start)
  theirs = dataclasses.replace(
    config, vocab_size=len(rows), mask_id=None, unused_rows=0, max_seq_len=positions, adapter=None
  )
  base, _ = adapter.split(params)  # next tokens do not use the adapter
  tables = {n: np.asarray(x)[rows] for n, x in base.items() if n in ("embedding", "head")}
  program = Program(binary, folder / "model.bin", folder / "tokens.bin", start)
  llama2c.write(program.checkpoint, theirs, base | tables)
  pieces = [b"%d " % i for i in rows]
  program.vocabulary.write_bytes(vocabulary_file(pieces, [0.0] * len(rows)))
  return program


def run(program: Program, steps: int, threads: int) -> Turn:
  """Generates `steps` tokens, or fewer where the token that it started from comes up again.

  Raises:
    UsageError: it fails, says no speed, or was too fast for its clock.
  """
  files = [str(program.checkpoint), "-z", str(program.vocabulary)]
  done = subprocess.run(
    [str(program.binary), *files, "-t", "0", "-n", str(steps), "-i", ""],
    capture_output=True,
    text=True,
    env={**os.environ, "OMP_NUM_THREADS": str(threads)},
  )
  if done.returncode:
    raise UsageError(f"llama2.c failed ({done.returncode}): {done.stderr.strip()[-200:]}")
  return read_turn(done.stdout, done.stderr, program.start, steps)


def read_turn(printed: str, told: str, start: int, steps: int) -> Turn:
  """A run from what it printed and what it told on standard error.

  The token that ends a text early is not printed, but was generated like the others.
  """
  tokens = [int(word) for word in printed.split()]
  if len(tokens) < steps:
    tokens.append(start)
  if len(tokens) < 2:
    raise UsageError(
      f"llama2.c ends with its first token, the one that it starts from ({start}): choose another with "
      "--start"
    )
  speed = _SPEED.search(told)
  if speed is None:
    raise UsageError(f"llama2.c told no speed, only {told.strip()[-200:]!r}")
  rate = float(speed[1])
  if not (math.isfinite(rate) and rate > 0):
    raise UsageError(
      "llama2.c took less than a millisecond, which its clock counts in: raise --max_tokens"
    )
  timed = len(tokens) - 1
  return Turn(tokens, timed, timed, timed / rate)
