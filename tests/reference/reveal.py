"""Reveal rules, one row at a time, as the SBD paper (eqs. 8 and 18, section 9.1) words them.

Each takes probabilities [T, V] and the list of masked positions, in order, and returns the set of
positions to reveal. Python's sort is stable: equal scores stay leftmost first.
"""

import math


def entropy(p):
  return -sum(x * math.log(x) for x in p if x > 0)


def _ranked(masked, score):
  return sorted(masked, key=lambda i: -score(i))


def _threshold(masked, score, passes):
  chosen = {i for i in masked if passes(i)}
  return chosen or set(_ranked(masked, score)[:1])


def eb_entropy(probs, masked, gamma):
  """Largest s >= 1 with H_1 + ... + H_{s-1} <= gamma, by ascending entropy."""
  order = _ranked(masked, lambda i: -entropy(probs[i]))
  h = [entropy(probs[i]) for i in order]
  return set(order[: max((s for s in range(1, len(h) + 1) if sum(h[: s - 1]) <= gamma), default=0)])


def eb_confidence(probs, masked, gamma):
  return _eb_sum_minus_max(probs, _ranked(masked, lambda i: max(probs[i])), gamma)


def eb_margin(probs, masked, gamma):
  return _eb_sum_minus_max(probs, _ranked(masked, lambda i: _margin(probs[i])), gamma)


def _eb_sum_minus_max(probs, order, gamma):
  h = [entropy(probs[i]) for i in order]
  fits = [s for s in range(1, len(h) + 1) if sum(h[:s]) - max(h[:s]) <= gamma]
  return set(order[: max(fits, default=0)])


def _margin(p):
  first, second = sorted(p, reverse=True)[:2]
  return first - second


def factor(probs, masked, f):
  """Reads on while (n + 1)(1 - c_n) <= f; the first is always taken, a failing one never."""
  order = _ranked(masked, lambda i: max(probs[i]))
  taken = order[:1]
  for n, i in enumerate(order[1:], start=2):
    if max(probs[i]) < 1 - f / (n + 1):
      break
    taken.append(i)
  return set(taken)


def confidence_threshold(probs, masked, tau):
  return _threshold(masked, lambda i: max(probs[i]), lambda i: max(probs[i]) >= tau)


def entropy_threshold(probs, masked, gamma):
  return _threshold(masked, lambda i: -entropy(probs[i]), lambda i: entropy(probs[i]) < gamma)


def top_k(probs, masked, n, score="confidence"):
  scores = {
    "confidence": lambda i: max(probs[i]),
    "margin": lambda i: _margin(probs[i]),
    "entropy": lambda i: -entropy(probs[i]),
  }
  return set(_ranked(masked, scores[score])[:n])
