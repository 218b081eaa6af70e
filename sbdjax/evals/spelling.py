"""Spelling accuracy: the share of generated words that occur in the training text.

The measure of samples of character models in Self-Speculative Masked Diffusions, section 5.1 (1024
samples of 256 characters there): a word is what stands between two spaces, so what a sample begins
and ends with does not count; it may be part of a longer word.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple


class Spelling(NamedTuple):
  """Words of generated texts.

  Attributes:
    correct: how many are words of the training text.
    words: how many there are.
  """

  correct: int
  words: int

  @property
  def accuracy(self) -> float:
    """correct / words; 0 where there are no words (a model that never writes a space)."""
    return self.correct / self.words if self.words else 0.0


def vocabulary(text: str) -> frozenset[str]:
  """The words of a text."""
  return frozenset(text.split(" ")) - {""}


def spelling(texts: Iterable[str], known: Collection[str]) -> Spelling:
  """Looks every word of `texts` up in `known` (see `vocabulary`)."""
  words = [word for text in texts for word in text.split(" ")[1:-1] if word]
  return Spelling(sum(word in known for word in words), len(words))
