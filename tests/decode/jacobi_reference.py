"""Jacobi decoding for one row in plain Python: no cache, every prediction from the whole text.

Written in the terms of Algorithm 1 and of the authors' code: lists of tokens for each block, a pool
that is a list. `Rules(published=True)` has that code's forwards, idle ones included.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable

import jax

from sbdjax.decode.jacobi.drafts import DRAFT_STREAM
from tests.reference import visibility


def from_text(key, text, position):
  """A token of the text so far; which key is used is checked, not what noise it gives."""
  return text[int(jax.random.bits(jax.random.fold_in(key, DRAFT_STREAM + position))) % len(text)]


@dataclasses.dataclass
class NGrams:
  """The newest `size` distinct n-grams of all points, keyed by their first token."""

  size: int
  n: int
  candidates: int
  grams: list = dataclasses.field(default_factory=list)

  def match(self, drafts, c):
    """Drafts of the open block with the tokens after c replaced."""
    found = []
    for gram in self.grams:
      continued = (gram[1:] + drafts[len(gram) - 1 :])[: len(drafts)]
      if gram[0] == c and continued != drafts:
        found.append(continued)
    return found[: self.candidates]

  def push(self, before, predicted, **_):
    point = before[-self.n :] + predicted
    new = [tuple(point[i : i + self.n]) for i in range(len(point) - self.n + 1)]
    distinct = dict.fromkeys(new + [tuple(gram) for gram in self.grams])
    self.grams = [list(gram) for gram in distinct][: self.size]


@dataclasses.dataclass
class Points:
  """The pool of the authors' code: whole sequences."""

  size: int
  skip: int = -1
  sequences: list = dataclasses.field(default_factory=list)
  rejected: bool = False

  def match(self, drafts, c):
    found = []
    for sequence in self.sequences[1:]:
      if c in sequence:
        rest = sequence[sequence.index(c) + 1 :]
        found.append((rest + drafts[len(rest) :])[: len(drafts)])
    return found if self.rejected and len(found) >= 2 else []

  def push(self, generated, drafts, ahead, rejected, **_):
    self.rejected = rejected
    if rejected:
      whole = [t for t in generated + drafts + ahead if t != self.skip]
      tail = [t for t in drafts if t != self.skip]
      self.sequences = (([tail] if tail else []) + [whole] + self.sequences)[: self.size]


@dataclasses.dataclass(frozen=True)
class Rules:
  """What is decoded how.

  Attributes:
    window: the running window instead of blocks.
    pool: () -> NGrams, Points or None.
    published: as the authors' code: where the open block is full and no other has kept a token, a
      block of padding gets a forward to itself.
  """

  n: int
  blocks: int = 1
  ratio: float = 1.0
  eager: bool = False
  window: bool = False
  fill: Callable = from_text
  pad: Callable | None = None
  pool: Callable = lambda: None
  published: bool = False


@dataclasses.dataclass
class Ahead:
  """A pseudo-active block: its n tokens, of which the first `kept` stay."""

  tokens: list
  kept: int = 0

  def update(self, predicted):
    """`predicted[j]` is the prediction after token j."""
    first = self.kept  # stays, whatever it is
    self.kept = min(first + 1, len(self.tokens))
    while self.kept < len(self.tokens) and self.tokens[self.kept] == predicted[self.kept - 1]:
      self.kept += 1
    self.tokens = self.tokens[: first + 1] + predicted[first : len(self.tokens) - 1]


def reference(choose, finished, rules):
  """(logits_fn, prompt, limit, key) -> (generated tokens, nfe, reveal steps)."""
  r, n = rules, rules.n
  pad = r.pad or r.fill
  threshold = math.ceil(r.ratio * n)

  def run(logits_fn, prompt, limit, key):
    x, steps, pool, nfe = list(prompt), [], r.pool(), 0

    def predict(text, chain):
      """What is chosen after each token of the chain."""
      whole = text + chain
      logits = logits_fn(whole, visibility.causal(len(whole)))
      return [
        int(choose(jax.random.fold_in(key, i + 1), logits[i])) for i in range(len(text), len(whole))
      ]

    def fill(count, start, how=r.fill):
      return [how(key, x, start + i) for i in range(count)]

    drafts, end = fill(n - 1, len(x)), len(x) + n
    ahead: list[Ahead] = []
    while True:
      c, length = x[-1], len(x)
      later = [t for block in ahead for t in block.tokens]
      rows = [drafts] + (pool.match(drafts, c) if pool else [])
      wanted = [predict(x[:-1], [c, *row, *later]) for row in rows]
      accepted = []
      for row, want in zip(rows, wanted, strict=True):
        verified = row + later if r.eager else row
        hits = itertools.takewhile(
          lambda pair: pair[0] == pair[1], zip(verified, want, strict=False)
        )
        accepted.append(len(list(hits)))
      best = accepted.index(max(accepted))
      want, a = wanted[best], accepted[best]
      new = (rows[best] + later)[:a] + [want[a]]
      x += new
      steps += [nfe] * len(new)
      nfe += 1
      generated = finished(x[len(prompt) :], limit)
      if generated is not None:
        return generated, nfe, steps[: len(generated)]

      drafts = want[a + 1 : end - 1 - length]
      if pool:
        pool.push(
          before=x[:length],
          predicted=want,
          generated=x[len(prompt) - 1 :],
          drafts=drafts,
          ahead=later,
          rejected=len(x) < end,
        )
      if r.window:
        known = want[a + 1 :]
        drafts = (known + fill(n - 1, len(x))[len(known) :])[: n - 1]
        end = len(x) + n
        continue

      at = end - length  # column of the first block ahead
      for block in ahead:
        block.update((want if r.eager else wanted[0])[at : at + n])
        at += n
      progress = ahead[-1].kept if ahead else len(x) - (end - n)
      reach = end - 1 + n * len(ahead)
      if progress >= threshold and 1 + len(ahead) < r.blocks:
        room = len(x) <= reach or (r.published and not ahead)
        if room:
          cloned = [x[-1], *drafts] if len(x) < end else []
          ahead.append(Ahead(cloned + fill(n, reach, pad)[len(cloned) :]))
      if len(x) >= end:
        if r.published and ahead and not any(block.kept for block in ahead):
          # The open block is full and sleeps; c is not even looked at.
          at, want = 0, predict(x[:-1], [t for block in ahead for t in block.tokens])
          for block in ahead:
            block.update(want[at : at + n])
            at += n
          nfe += 1
        while ahead and len(x) >= end:
          block, ahead = ahead[0], ahead[1:]
          end += n
          drafts = block.tokens[len(x) - (end - n) + 1 :]
        if len(x) >= end:
          drafts, end = fill(n - 1, len(x)), len(x) + n

  return run
