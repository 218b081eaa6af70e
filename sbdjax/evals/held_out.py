"""Held-out texts as rows of one length, for likelihoods and for a model's samples to stand beside."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sbdjax.data.config import DataConfig
from sbdjax.data.sources import load_corpus
from sbdjax.data.tokenizers import Tokenizer
from sbdjax.errors import UsageError


class HeldOut(NamedTuple):
  """Texts of one length.

  Attributes:
    rows_BxL: int32 tokens.
    given_L: bool, what a sampler is given: the marks around a part of a document.
    source_B: of each row the document that it is cut from; rows of one document are no independent
      draws. None: rows run through the documents, one after the other.
  """

  rows_BxL: np.ndarray
  given_L: np.ndarray
  source_B: np.ndarray | None = None

  def about(self) -> dict[str, list[int]]:
    """What a record keeps of each row beside what is measured."""
    return {} if self.source_B is None else {"source": self.source_B.tolist()}


def marks(length: int) -> np.ndarray:
  """bool [length + 2]: the begin and the end, which are given."""
  return np.isin(np.arange(length + 2), (0, length + 1))


def read(data: DataConfig, split: str, tokenizer: Tokenizer, length: int, count: int) -> HeldOut:
  """The first `count` rows of a split, or as many as there are.

  With `data.packing` "crop" a row is `length` tokens of one document between begin and end marks; a
  document gives as many as it holds one after the other, and what is left over is not used.
  Otherwise rows are cut every `length` tokens.

  Args:
    length: tokens of a row, marks not counted.

  Raises:
    UsageError: the split has no row of that length.
  """
  corpus = load_corpus(data, split, tokenizer)
  given_L, source_B = np.zeros(length, bool), None
  if data.packing == "crop":
    found = _parts(corpus.starts, corpus.lengths, length)[:count]
    between = (corpus.tokens[first : first + length].tolist() for _, first in found)
    rows = [[tokenizer.bos_id, *tokens, tokenizer.eos_id] for tokens in between]
    given_L, source_B = marks(length), np.array([document for document, _ in found])
  else:
    count = min(count, len(corpus.tokens) // length)
    rows = np.reshape(corpus.tokens[: count * length], (count, length)).tolist()
  if not rows:
    raise UsageError(f"the {split} split has no text of {length} tokens: {corpus.origin}")
  return HeldOut(np.asarray(rows, np.int32), given_L, source_B)


def _parts(starts: np.ndarray, lengths: np.ndarray, length: int) -> list[tuple[int, int]]:
  """(document, index of its first token) of each part, in the order of the documents."""
  return [
    (document, int(start) + length * part)
    for document, (start, size) in enumerate(zip(starts, lengths, strict=True))
    for part in range(int(size) // length)
  ]
