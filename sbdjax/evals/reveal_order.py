"""What goes wrong where tokens are revealed before those to their left.

A token that is revealed while some to its left are still masked fixes how many there will be: if the
text between needs more or fewer, a word is lost or said twice. So the tokens of a text are aligned with
a right one, and what is inserted, left out or another token is counted by how many tokens
to the left were masked still when it was revealed.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, NamedTuple

RIGHT, SUBSTITUTED, INSERTED = "right", "substituted", "inserted"


class Errors(NamedTuple):
  """Of one text.

  Attributes:
    kinds: RIGHT, SUBSTITUTED or INSERTED, of each token.
    deleted: tokens of the right text that have no counterpart.
  """

  kinds: list[str]
  deleted: int


def align(tokens: Sequence[int], right: Sequence[int]) -> Errors:
  """Aligns a text with a right one (longest common runs first, as `difflib`)."""
  kinds, deleted = [RIGHT] * len(tokens), 0
  matcher = difflib.SequenceMatcher(None, list(right), list(tokens), autojunk=False)
  for what, a, b, c, d in matcher.get_opcodes():
    if what == "equal":
      continue
    shared = min(b - a, d - c)
    kinds[c:d] = [SUBSTITUTED] * shared + [INSERTED] * (d - c - shared)
    deleted += b - a - shared
  return Errors(kinds, deleted)


def masked_left(reveal_step: Sequence[int]) -> list[int]:
  """For each token, how many to its left were not there before the forward that revealed it.

  Those revealed by the same forward count, as none of them knew of the other.
  """
  return [sum(other >= step for other in reveal_step[:i]) for i, step in enumerate(reveal_step)]


def count(
  texts: Sequence[Sequence[int]], right: Sequence[Sequence[int]], steps: Sequence[Sequence[int]]
) -> dict[str, Any]:
  """Errors of texts, by tokens masked to the left.

  Args:
    texts: tokens of each.
    right: tokens that would have been right.
    steps: `Result.reveal_step` of each, as long as the text.

  Returns:
    dict(deleted, by_masked_left={"0": {"tokens": n, "substituted": n, "inserted": n}, ...}).
  """
  deleted, by_left = 0, dict[int, dict[str, int]]()
  for tokens, wanted, step in zip(texts, right, steps, strict=True):
    errors = align(tokens, wanted)
    deleted += errors.deleted
    for kind, left in zip(errors.kinds, masked_left(step), strict=True):
      of = by_left.setdefault(left, {"tokens": 0, SUBSTITUTED: 0, INSERTED: 0})
      of["tokens"] += 1
      if kind != RIGHT:
        of[kind] += 1
  return {"deleted": deleted, "by_masked_left": {str(k): by_left[k] for k in sorted(by_left)}}
