"""Tokens on disk, read row by row: for data that do not fit in memory.

A folder holds `tokens.bin` (all documents, one after the other), `targets.bin` (a byte a token;
where some are none), `lengths.npy`, `prompt_lengths.npy` and `store.json`. It is written once, a few
thousand documents at a time, and gets its name when it is complete; then any row is found by its
position, so that the stream of rows is the same as of a corpus in memory.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np

from sbdjax import failures, foreign
from sbdjax.data.corpus import Corpus, Document, smallest_dtype
from sbdjax.errors import DataError, NothingLeftError

_META = "store.json"
_DOCUMENTS = 2048


class _Meta(TypedDict):
  """What is read of store.json."""

  dtype: str
  tokens: int
  largest: int
  targets: bool
  origin: str


def place(folder: pathlib.Path, made_of: Mapping[str, Any]) -> pathlib.Path:
  """The folder of `folder` for tokens that depend on `made_of`, which is plain JSON."""
  text = json.dumps(made_of, sort_keys=True)
  return folder / f"{zlib.crc32(text.encode()):08x}"


class Text(NamedTuple):
  """What a folder is made of.

  Attributes:
    documents: gives all of them, in order.
    tokenize: some of them -> their tokens; None, or NothingLeftError, where they have none.
    vocab_size: ids lie below it.
    origin: where the text comes from, for people.
  """

  documents: Callable[[], Iterable[Document]]
  tokenize: Callable[[Sequence[Document]], Corpus | None]
  vocab_size: int
  origin: str


def load(folder: pathlib.Path, text: Text) -> Corpus:
  """The corpus in `folder`, which is written first where it is not there.

  Args:
    folder: of this text and its tokenizer alone; see `place`.
    text: what is in it.

  Raises:
    DataError: it cannot be written or read, or there is no text.
  """
  if not (folder / _META).is_file():
    _write(folder, text)
  return read(folder)


def read(folder: pathlib.Path) -> Corpus:
  """The corpus in a folder, its tokens left on disk. Raises DataError."""
  meta = foreign.read_json(folder / _META, _Meta, DataError)
  with failures.reading(folder, DataError, "delete it, and it is made again"):
    size, dtype = meta["tokens"], np.dtype(meta["dtype"])
    tokens = np.memmap(folder / "tokens.bin", dtype, "r", shape=(size,))
    marked = meta["targets"]
    targets = np.memmap(folder / "targets.bin", bool, "r", shape=(size,)) if marked else None
    lengths = np.load(folder / "lengths.npy", allow_pickle=False)
    prompts = np.load(folder / "prompt_lengths.npy", allow_pickle=False)
  if lengths.sum() != size:
    raise DataError(f"{folder} is damaged: delete it, and it is made again")
  given = prompts if prompts.any() else None
  reopen = (read, (folder,))
  return Corpus(tokens, lengths, given, meta["origin"], targets, meta["largest"], reopen)


def _write(folder: pathlib.Path, text: Text) -> None:
  try:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as made:
      new = pathlib.Path(made) / "new"
      new.mkdir()
      _fill(new, text)
      try:
        new.rename(folder)
      except OSError:
        if not (folder / _META).is_file():  # another process may have been faster
          shutil.rmtree(folder, ignore_errors=True)
          new.rename(folder)
  except OSError as e:
    raise DataError(f"cannot write {folder}: {failures.one_line(e)}") from e


def _fill(folder: pathlib.Path, text: Text) -> None:
  dtype = np.dtype(smallest_dtype(text.vocab_size))
  lengths: list[np.ndarray] = []
  prompts: list[np.ndarray] = []
  size, largest, marked = 0, 0, False
  nothing: NothingLeftError | None = None
  with open(folder / "tokens.bin", "wb") as tokens, open(folder / "targets.bin", "wb") as targets:
    left = iter(text.documents())
    while some := list(itertools.islice(left, _DOCUMENTS)):
      try:
        corpus = text.tokenize(some)
      except NothingLeftError as e:
        corpus, nothing = None, nothing or e
      if corpus is None:
        continue
      tokens.write(np.asarray(corpus.tokens, dtype).tobytes())
      chosen = np.ones(len(corpus.tokens), bool) if corpus.targets is None else corpus.targets
      targets.write(np.asarray(chosen, bool).tobytes())
      marked |= corpus.targets is not None
      lengths.append(corpus.lengths)
      given = corpus.prompt_lengths
      prompts.append(np.zeros(len(corpus.lengths), np.int64) if given is None else given)
      size, largest = size + len(corpus.tokens), max(largest, corpus.largest_token)
  if not size and nothing is not None:
    raise nothing
  if not size:
    raise DataError(f"{text.origin}: the corpus is empty; give a file with some text")
  np.save(folder / "lengths.npy", np.concatenate(lengths))
  np.save(folder / "prompt_lengths.npy", np.concatenate(prompts))
  count = sum(map(len, lengths))
  meta = _Meta(
    dtype=dtype.name,
    tokens=size,
    largest=largest,
    targets=marked,
    origin=f"{text.origin}: {count:,} documents",
  )
  (folder / _META).write_text(json.dumps(meta, indent=2) + "\n")
