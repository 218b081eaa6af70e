"""`data.source=exercises`: the exercises of `exercises` as documents with prompts."""

from __future__ import annotations

import dataclasses

from sbdjax.data.config import SPLITS
from sbdjax.data.corpus import Corpus, Document
from sbdjax.data.exercises import KINDS, exercises
from sbdjax.data.sources import Source
from sbdjax.data.tokenizers import Tokenizer
from sbdjax.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Exercises(Source):
  """Questions, which are given, and their answers, which are learned; each ends in eos.

  Attributes:
    count: exercises of the training split.
    held_out: of the validation and the test split each.
    seed: of the exercises; another one, other exercises.
    kinds: which, keys of `exercises.KINDS`.
  """

  source: str = "exercises"
  add_eos: bool = True
  count: int = 20_000
  held_out: int = 400
  seed: int = 0
  kinds: tuple[str, ...] = tuple(KINDS)

  def __post_init__(self) -> None:
    super().__post_init__()
    for name in ("count", "held_out"):
      if getattr(self, name) < 1:
        raise UsageError(f"data.{name}={getattr(self, name)} must be at least 1")

  def load(self, split: str, tokenizer: Tokenizer) -> Corpus:
    """See `Source.load`."""
    count = self.count if split == SPLITS[0] else self.held_out
    drawn = exercises(split, count, self.seed, self.kinds)
    documents = [Document(e.response, e.prompt) for e in drawn]
    origin = f"{count:,} exercises of {', '.join(self.kinds)}, seed {self.seed}, {split}"
    return self.tokenize(documents, tokenizer, origin)
