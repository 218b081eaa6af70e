"""How varied generated text is, by n-grams of tokens: cheap signs of degenerate decoding."""

from __future__ import annotations

from collections.abc import Sequence


def _ngrams(tokens: Sequence[int], n: int) -> list[tuple[int, ...]]:
  return list(zip(*(tokens[i:] for i in range(n)), strict=False))


def distinct(texts: Sequence[Sequence[int]], n: int) -> float:
  """distinct-n (Li et al. 2016): different n-grams / n-grams, over all texts together.

  No n-gram spans two texts; 0 where no text has n tokens. It falls with the amount of text, so
  compare it only between sets of about the same size.
  """
  found = [gram for text in texts for gram in _ngrams(text, n)]
  return len(set(found)) / len(found) if found else 0.0


def repetition(texts: Sequence[Sequence[int]], n: int = 4) -> float:
  """Share of n-grams that occurred before in the same text, over all texts; 0: none repeats."""
  found = [_ngrams(text, n) for text in texts]
  total = sum(map(len, found))
  return 1 - sum(len(set(grams)) for grams in found) / total if total else 0.0
