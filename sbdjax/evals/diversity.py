"""How varied generated text is, by n-grams of tokens: cheap signs of degenerate decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Repeats(NamedTuple):
  """N-grams of one text.

  Attributes:
    repeated: how many occurred before in it.
    ngrams: how many there are.
  """

  repeated: int
  ngrams: int


def _ngrams(tokens: Sequence[int], n: int) -> list[tuple[int, ...]]:
  return list(zip(*(tokens[i:] for i in range(n)), strict=False))


def distinct(texts: Sequence[Sequence[int]], n: int) -> float:
  """distinct-n (Li et al. 2016): different n-grams / n-grams, over all texts together.

  No n-gram spans two texts; 0 where no text has n tokens. It falls with the amount of text, so
  compare it only between sets of about the same size.
  """
  found = [gram for text in texts for gram in _ngrams(text, n)]
  return len(set(found)) / len(found) if found else 0.0


def repeats(text: Sequence[int], n: int = 4) -> Repeats:
  """The n-grams of one text that occurred before in it, and all of them."""
  grams = _ngrams(text, n)
  return Repeats(len(grams) - len(set(grams)), len(grams))


def repetition(texts: Sequence[Sequence[int]], n: int = 4) -> float:
  """Share of n-grams that occurred before in the same text, over all texts; 0: none repeats."""
  repeated, ngrams = zip(*(repeats(text, n) for text in texts), strict=True)
  return sum(repeated) / sum(ngrams) if any(ngrams) else 0.0
