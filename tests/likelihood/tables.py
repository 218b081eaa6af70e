"""A self-speculative model given by tables, and all its runs enumerated one by one."""

import collections
import itertools
from typing import NamedTuple

import numpy as np


class Tables(NamedTuple):
  """Distributions over S values at D positions, identity order, float64 [D, S**D, D, S] each.

  draft[i, context(x[:i]), d] and target[i, context(x[:d]), d] for d >= i, NaN elsewhere;
  `context` reads a prefix as a number in base S.
  """

  draft: np.ndarray
  target: np.ndarray

  @property
  def length(self):
    return self.draft.shape[0]

  @property
  def values(self):
    return self.draft.shape[3]


def context(x, values):
  number = 0
  for v in x:
    number = number * values + int(v)
  return number


def random_tables(length, values, seed=0, concentration=0.7):
  rng = np.random.default_rng(seed)
  draft = np.full((length, values**length, length, values), np.nan)
  target = draft.copy()
  for i in range(length):
    for d in range(i, length):
      for table, known in ((draft, i), (target, d)):
        rows = values**known
        table[i, :rows, d] = rng.dirichlet(np.full(values, concentration), rows)
  return Tables(draft, target)


def texts(tables):
  """Every text, in the order of `context`: int [S**D, D]."""
  return np.array(list(itertools.product(range(tables.values), repeat=tables.length)))


def observed(tables, x):
  """(log draft, log target) [D, D] of the tokens of x; NaN where a pass does not predict."""
  length, values = tables.length, tables.values
  out = np.full((2, length, length), np.nan)
  for i in range(length):
    for d in range(i, length):
      out[0, i, d] = tables.draft[i, context(x[:i], values), d, x[d]]
      out[1, i, d] = tables.target[i, context(x[:d], values), d, x[d]]
  return np.log(out)


def enumerate_runs(tables, window, n_inner):
  """Mass of every (text, outer loops, rejections, causal passes), straight from Algorithm 3."""
  length, values = tables.length, tables.values
  mass = collections.Counter()

  def outer(x, p, counts):
    i = len(x)
    if i == length:
      mass[tuple(x), *counts] += p
      return
    o, r, c = counts
    draft = tables.draft[i, context(x, values)]
    end = min(i + window[i], length)
    for guess in itertools.product(range(values), repeat=end - i):
      q = np.prod([draft[i + j, v] for j, v in enumerate(guess)])
      verify(i, end, x + list(guess), i, 0, p * q, (o + 1, r, c + 1))

  def verify(i, end, y, d, rejections, p, counts):
    if d == end:
      return outer(y, p, counts)
    q = tables.draft[i, context(y[:i], values), d]
    t = tables.target[i, context(y[:d], values), d]
    accept = min(1.0, t[y[d]] / q[y[d]])
    verify(i, end, y, d + 1, rejections, p * accept, counts)
    residual = np.maximum(t - q, 0.0)
    if accept == 1.0:
      return
    o, r, c = counts
    for v in np.flatnonzero(residual):
      fixed = [*y[:d], int(v), *y[d + 1 :]]
      here = p * (1 - accept) * residual[v] / residual.sum()
      if rejections + 1 == n_inner or d == end - 1:
        outer(fixed[: d + 1], here, (o, r + 1, c))
      else:
        verify(i, end, fixed, d + 1, rejections + 1, here, (o, r + 1, c + 1))

  outer([], 1.0, (0, 0, 0))
  return mass
