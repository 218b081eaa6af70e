"""A setting is chosen on one half of the texts and measured on the other, both ways.

The best of many settings looks better on the texts that it was chosen on than it is. Chosen on one half and
measured on the other, and the other way round, every text is measured under a setting that was chosen
without it (cross-fitting; Chernozhukov et al. 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def halves(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
  """Numbers of the texts of each half, ascending: random, the same for all who ask with this seed."""
  order = np.random.default_rng(seed).permutation(count)
  return np.sort(order[: count // 2]), np.sort(order[count // 2 :])


def cross_fitted(
  count: int, choose: Callable[[np.ndarray], T | None], seed: int = 0
) -> list[tuple[T, np.ndarray]] | None:
  """What was chosen on each half, with the numbers of the other half's texts, to be measured there.

  Args:
    count: texts.
    choose: numbers of texts -> what is best on them; None: nothing will do.
    seed: of `halves`.

  Returns:
    Two pairs, whose numbers are those of all texts; None where nothing will do on a half.
  """
  first, second = halves(count, seed)
  found = []
  for on, other in ((first, second), (second, first)):
    chosen = choose(on)
    if chosen is None:
      return None
    found.append((chosen, other))
  return found
