"""Which tokens are run once: requests that begin alike become trees, and trees fill rows.

A group of requests (the options of a question) is a tree: a trunk, which is what the inputs of all
begin with, and a branch each. Trees whose trunks begin alike (few-shot examples) share a preamble,
which is run once into a cache. What is left of the trees is packed into rows; the mask
`masks.SharedBeginnings` keeps them apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sbdjax.decode.sizes import round_up
from sbdjax.evals.scoring.requests import TokenRequest

# A shorter common beginning of several questions is run again with each of them, and so is one that
# saves fewer tokens in all: a cache is one more forward.
_SHORTEST_PREAMBLE, _LEAST_SAVED = 32, 256
# Columns of a row, but for longer trees: long enough to fill well, and short enough that attention
# is a small part of a forward.
WIDTH = 512
_SMALLEST = 64


class Tree(NamedTuple):
  """Requests that share the beginning of their inputs. A request's last token is never an input.

  Attributes:
    requests: their numbers.
    inputs: tokens of each request but the last.
    trunk: how many tokens all inputs begin with.
    first: the first token (number in its input) after which something is predicted, of all.
  """

  requests: tuple[int, ...]
  inputs: tuple[tuple[int, ...], ...]
  trunk: int
  first: int

  def size(self, preamble: int) -> int:
    """Columns it takes, after a preamble that is in a cache."""
    return self.trunk - preamble + sum(len(x) - self.trunk for x in self.inputs)


class Family(NamedTuple):
  """Trees whose trunks begin with the same `preamble` tokens; 0: they share too little."""

  trees: tuple[Tree, ...]
  preamble: int

  @property
  def tokens(self) -> tuple[int, ...]:
    """The preamble."""
    return self.trees[0].inputs[0][: self.preamble]


class Run(NamedTuple):
  """Consecutive columns of a row that are one part of one text.

  Attributes:
    tokens: of the part.
    position: of its first token in the text.
    before: columns of the run it continues, (start, end).
  """

  tokens: tuple[int, ...]
  position: int
  before: tuple[int, int]


class Row(NamedTuple):
  """One row of a forward.

  Attributes:
    runs: one after the other, from column 0.
    places: request -> the column of each input from which something is predicted.
  """

  runs: list[Run]
  places: dict[int, list[int]]

  @property
  def size(self) -> int:
    return sum(len(run.tokens) for run in self.runs)


def common(a: Sequence[int], b: Sequence[int]) -> int:
  """How many tokens both begin with."""
  pairs = enumerate(zip(a, b, strict=False))
  return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def tree(numbers: Sequence[int], requests: Sequence[TokenRequest]) -> Tree:
  """The tree of the given requests."""
  inputs = [(*r.context, *r.continuation)[:-1] for r in requests]
  shared = min(common(inputs[0], other) for other in inputs)
  return Tree(tuple(numbers), tuple(inputs), shared, min(len(r.context) for r in requests) - 1)


def families(trees: Sequence[Tree], share: bool = True) -> list[Family]:
  """Trees by preambles worth a forward of their own; those without one are the last family.

  Greedy in the order of their tokens: a tree joins while the tokens saved become more.
  """
  if not share:
    return [Family(tuple(trees), 0)]
  ordered = sorted(trees, key=lambda t: t.inputs[0])
  groups: list[list[Tree]] = []
  shared: list[int] = []
  for new in ordered:
    length = min(new.trunk, new.first)
    if groups:
      joint = min(shared[-1], length, common(groups[-1][0].inputs[0], new.inputs[0]))
      count = len(groups[-1])
      if joint >= _SHORTEST_PREAMBLE and count * joint > (count - 1) * shared[-1]:
        groups[-1].append(new)
        shared[-1] = joint
        continue
    groups.append([new])
    shared.append(length)
  saved = [(len(g) - 1) * n for g, n in zip(groups, shared, strict=True)]
  found = [Family(tuple(g), n) for g, n in zip(groups, shared, strict=True)]
  worth = [family for family, tokens in zip(found, saved, strict=True) if tokens >= _LEAST_SAVED]
  others = [g for g, tokens in zip(groups, saved, strict=True) if tokens < _LEAST_SAVED]
  alone = tuple(itertools.chain(*others))
  return [*worth, Family(alone, 0)] if alone else worth


def place(row: Row, new: Tree, preamble: int) -> None:
  """Adds a tree's runs to a row."""
  start = row.size
  trunk = new.inputs[0][preamble : new.trunk]
  row.runs.append(Run(trunk, preamble, (start, start)))
  end = column = start + len(trunk)
  for number, tokens in zip(new.requests, new.inputs, strict=True):
    own = tokens[new.trunk :]
    columns = [*range(start, end), *range(column, column + len(own))]
    row.places[number] = columns  # cut to those that are needed by `packed`
    if own:
      row.runs.append(Run(own, new.trunk, (start, end)))
    column += len(own)


def packed(
  family: Family, requests: Sequence[TokenRequest], width: int = WIDTH
) -> list[tuple[int, list[Row]]]:
  """Rows of a family's trees, by their width: longest first, first fit.

  Args:
    requests: all of them, by number.
    width: of rows; a longer tree has a row of its own length, rounded up.
  """
  ordered = sorted(family.trees, key=lambda t: -t.size(family.preamble))
  total = sum(t.size(family.preamble) for t in ordered)
  width = min(width, round_up(total, _SMALLEST, _SMALLEST))
  by_width: dict[int, list[Row]] = {}
  for new in ordered:
    size = new.size(family.preamble)
    own = max(width, round_up(size, _SMALLEST, _SMALLEST))
    rows = by_width.setdefault(own, [])
    row = next((r for r in rows if r.size + size <= own), None)
    if row is None:
      row = Row([], {})
      rows.append(row)
    place(row, new, family.preamble)
    for number in new.requests:
      columns, scored = row.places[number], len(requests[number].continuation)
      row.places[number] = columns[len(columns) - scored :]
  return list(by_width.items())


class Columns(NamedTuple):
  """Rows as arrays: int32 [B, T] each.

  Attributes:
    tokens, positions: of every column; zeros in padding.
    before_start, before_end, start: as of `masks.SharedBeginnings`.
  """

  tokens: np.ndarray
  positions: np.ndarray
  before_start: np.ndarray
  before_end: np.ndarray
  start: np.ndarray


def columns(rows: Sequence[Row], height: int, width: int) -> Columns:
  """`rows` in `height` rows of `width` columns; padding sees itself alone."""
  out = Columns(*(np.zeros((height, width), np.int32) for _ in Columns._fields))
  out.start[:] = np.arange(width)
  for at, row in enumerate(rows):
    first = 0
    for run in row.runs:
      here = (at, slice(first, first + len(run.tokens)))
      out.tokens[here] = run.tokens
      out.positions[here] = run.position + np.arange(len(run.tokens))
      out.before_start[here], out.before_end[here] = run.before
      out.start[here] = first
      first += len(run.tokens)
  return out
