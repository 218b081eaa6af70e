"""Generative NLL: how likely generated text is under an autoregressive judge.

Published numbers are those of GPT-2. It measures samples without a reference, and is lowered by
repetition as well as by quality: report it beside the entropy of the samples (`evals.entropy`).
The judge reads the text, not the tokens it was generated with, so any vocabulary will do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sbdjax.data.tokenizers import Tokenizer, beginning
from sbdjax.errors import UsageError
from sbdjax.evals.judge import Judge, Scores


class Generative(NamedTuple):
  """What a judge says of a set of texts.

  Attributes:
    nll: nats per token of the judge, every token of every text weighing the same.
    tokens: how many were scored.
    characters: of the texts.
    truncated: texts longer than the judge's context, of which the beginning was scored.
    each: the sums of every text.
  """

  nll: float
  tokens: int
  characters: int
  truncated: int
  each: Scores

  @property
  def perplexity(self) -> float:
    """exp of the mean NLL (not the mean of perplexities)."""
    return math.exp(self.nll)

  @property
  def bits_per_character(self) -> float:
    """The same likelihood, comparable between judges of different vocabularies."""
    return self.nll * self.tokens / math.log(2) / self.characters


def generative_nll(judge: Judge, tokenizer: Tokenizer, texts: Sequence[str]) -> Generative:
  """Scores texts from their beginning.

  A bos token comes first where the judge's prompts begin with one; else the first token of each
  text is given and not scored. Nothing is added at the end.

  Args:
    judge: an autoregressive model.
    tokenizer: the judge's own.

  Raises:
    UsageError: a text that leaves nothing to score.
  """
  first = beginning(tokenizer)
  longest = judge.lm.config.max_seq_len
  rows = [first + list(map(int, tokenizer.encode(text))) for text in texts]
  short = next((i for i, row in enumerate(rows) if len(row) < 2), None)
  if short is not None:
    raise UsageError(f"text {short} has too few tokens for the judge to score: {texts[short]!r}")
  cut = [row[:longest] for row in rows]
  scores = judge.score([row[:1] for row in cut], [row[1:] for row in cut])
  return Generative(
    nll=scores.nll_per_token,
    tokens=int(scores.tokens.sum()),
    characters=sum(len(tokenizer.decode(row[1:])) for row in cut),
    truncated=sum(len(row) > longest for row in rows),
    each=scores,
  )
