"""Reading plain, compressed and line-by-line text, and writing; errors name the file."""

import gzip
import json
import lzma
import os
import pathlib
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from typing import IO, Any

from sbdjax import failures, foreign, memory
from sbdjax.data import records
from sbdjax.data.corpus import Document
from sbdjax.errors import DataError


def _unzip_only_member(path: pathlib.Path) -> bytes:
  with zipfile.ZipFile(path) as archive:
    names = archive.namelist()
    if len(names) != 1:
      raise zipfile.BadZipFile(f"holds {len(names)} files instead of one")
    with archive.open(names[0]) as file:
      return _read_all(file, path)


def _read_all(file: IO[bytes], path: pathlib.Path) -> bytes:
  """What a decompressor gives, piece by piece: a few kilobytes may stand for all memory there is.

  Raises:
    DataError: it is more than half of the free memory, which is needed once more as text.
  """
  there = memory.host()
  pieces, size = [], 0
  while piece := file.read(_PIECE):
    size += len(piece)
    if there is not None and size > there // 2:
      raise DataError(
        f"{path} holds more than {memory.show(there // 2)}, half of the memory that is free: cut it up"
      )
    pieces.append(piece)
  return b"".join(pieces)


def _decompressed(open_file: Callable[[pathlib.Path], Any]) -> Callable[[pathlib.Path], bytes]:
  def read(path: pathlib.Path) -> bytes:
    with open_file(path) as file:
      return _read_all(file, path)

  return read


_PIECE = 1 << 24
_LONGEST_LINE = 1 << 28
_READERS = {
  ".xz": _decompressed(lzma.open),
  ".gz": _decompressed(gzip.open),
  ".zip": _unzip_only_member,
}
_OPENERS: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open}


def read_bytes(path: pathlib.Path, decompress: bool = True) -> bytes:
  """The content of a file, by default decompressed if its name ends in .xz, .gz or .zip.

  Raises:
    DataError: it cannot be read, is cut or damaged, or is empty.
  """
  read = _READERS.get(path.suffix) if decompress else None
  with failures.reading(foreign.regular(path, DataError), DataError):
    data = (read or pathlib.Path.read_bytes)(path)
  if not data.strip():
    raise DataError(f"{path} is empty: give a file with some text")
  return data


def read_text(path: pathlib.Path) -> str:
  """The content of a UTF-8 file. Raises DataError."""
  try:
    return read_bytes(path).decode("utf-8-sig")
  except UnicodeDecodeError as error:
    raise DataError(
      f"{path} is not UTF-8 text (byte {error.start}): convert it, e.g. with iconv"
    ) from error


def read_documents(path: pathlib.Path, separator: str) -> list[Document]:
  """Plain text documents with `separator` between them, white space around each removed.

  Raises:
    DataError: unreadable, not UTF-8, or nothing but separators.
  """
  whole = read_text(path)
  if records.are_lines_of_json(whole):
    raise DataError(
      f"{path} is JSON lines, not plain text: set data.source=jsonl (or name it with .jsonl)"
    )
  texts = [text.strip() for text in whole.split(separator)]
  documents = [Document(text) for text in texts if text]
  if not documents:
    raise DataError(f"{path} holds no document: there is nothing between its {separator!r}")
  return documents


def read_jsonl(path: pathlib.Path, text_field: str = "text") -> list[Document]:
  """One JSON object a line; see `records.document_of` for what it may hold.

  Lines that are damaged or hold no text are skipped, and a warning says how many: a file cut in the
  middle of its last line is common.

  Raises:
    DataError: unreadable, or no line is usable.
  """
  return list(records.parse_lines(read_text(path).split("\n"), path, text_field))


def iter_lines(path: pathlib.Path) -> Iterator[str]:
  """The lines of a UTF-8 file (.xz and .gz are opened), one at a time.

  Raises:
    DataError: it cannot be read, is cut or damaged, or has a line beyond all measure.
  """
  opener: Callable[..., IO[bytes]] = _OPENERS.get(path.suffix, open)
  at = 0
  with failures.reading(foreign.regular(path, DataError), DataError), opener(path, "rb") as file:
    while line := file.readline(_LONGEST_LINE):
      if len(line) == _LONGEST_LINE:
        raise DataError(f"{path} has a line of more than {memory.show(_LONGEST_LINE)}: cut it up")
      try:
        text = line.decode("utf-8-sig" if not at else "utf-8")
      except UnicodeDecodeError as error:
        raise DataError(
          f"{path} is not UTF-8 text (byte {at + error.start}): convert it, e.g. with iconv"
        ) from error
      at += len(line)
      yield text


def read_prompts(path: pathlib.Path) -> list[str]:
  """The lines of a text; of a .jsonl file what each line's object has as `prompt`.

  Empty lines are left out.

  Raises:
    DataError: it cannot be read or is empty, or a line of a .jsonl file has no such text.
  """
  text = read_text(path)
  if ".jsonl" not in path.suffixes:
    if records.are_lines_of_json(text):
      raise DataError(f"{path} is JSON lines, not prompts of a line each: name it with .jsonl")
    return [line for line in text.splitlines() if line.strip()]
  lines = enumerate(text.split("\n"), 1)
  return [_prompt(path, number, line) for number, line in lines if line.strip()]


def _prompt(path: pathlib.Path, number: int, line: str) -> str:
  try:
    record = json.loads(line)
  except (ValueError, RecursionError):
    record = None
  prompt = record.get("prompt") if isinstance(record, dict) else None
  if not isinstance(prompt, str):
    raise DataError(f'{path} line {number}: give an object with a text, like {{"prompt": "Once"}}')
  return prompt


def write_atomically(path: str | os.PathLike, write: Callable[[IO[bytes]], Any]) -> None:
  """Lets `write` fill a new file that takes the place of `path` only when complete.

  Raises:
    DataError: it cannot be written (full disk, no permission); `path` is left as it was.
  """
  path = pathlib.Path(path)
  temporary = None
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
      temporary = file.name
      write(file)
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
  except OSError as error:
    raise DataError(f"cannot write {path}: {error.strerror or error}") from error
  finally:
    if temporary and os.path.exists(temporary):
      os.remove(temporary)
