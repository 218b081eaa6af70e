"""Protein sequences in FASTA files."""

import pathlib

from sbdjax.data.corpus import Document
from sbdjax.data.files import read_text
from sbdjax.errors import DataError


def read_fasta(path: pathlib.Path) -> list[Document]:
  """One document a record: its lines joined, in capitals, a stop sign `*` at the end left out.

  Raises:
    DataError: unreadable, text before the first header, or no record with residues.
  """
  sequences: list[list[str]] = []
  for number, line in enumerate(read_text(path).splitlines(), 1):
    line = line.strip()
    if line.startswith(">"):
      sequences.append([])
    elif line and not line.startswith(";"):
      if not sequences:
        raise DataError(f"{path} line {number} is no FASTA: a record starts with a line >NAME")
      sequences[-1].append("".join(line.split()).upper())
  texts = ["".join(lines).removesuffix("*") for lines in sequences]
  documents = [Document(text) for text in texts if text]
  if not documents:
    raise DataError(f"{path} holds no sequence: expected lines >NAME, each followed by residues")
  return documents
