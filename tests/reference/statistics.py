"""Chi-square goodness of fit, without scipy."""

import math

import numpy as np


def chi_square_p(counts, probabilities, least_expected=5.0):
  """Probability of a statistic at least as large if `counts` were drawn from `probabilities`.

  Outcomes expected fewer than `least_expected` times are pooled.
  """
  counts, expected = np.asarray(counts, float), np.asarray(probabilities, float)
  assert counts.shape == expected.shape and abs(expected.sum() - 1) < 1e-6
  expected = expected * counts.sum()
  rare = expected < least_expected
  counts = np.append(counts[~rare], counts[rare].sum())
  expected = np.append(expected[~rare], expected[rare].sum())
  if expected[-1] < least_expected:
    assert counts[-1] < 10 * least_expected, "outcomes of probability 0 were drawn"
    counts, expected = counts[:-1], expected[:-1]
  statistic = float(np.sum((counts - expected) ** 2 / expected))
  return _upper_gamma((len(counts) - 1) / 2, statistic / 2)


def _upper_gamma(a, x):
  """Regularised upper incomplete gamma function Q(a, x)."""
  if x < a + 1:
    term = total = 1 / a
    n = a
    while abs(term) > 1e-15 * abs(total):
      n += 1
      term *= x / n
      total += term
    return 1 - total * math.exp(-x + a * math.log(x) - math.lgamma(a))
  # Lentz's continued fraction.
  tiny = 1e-300
  b = x + 1 - a
  c, d = 1 / tiny, 1 / b
  h = d
  for i in range(1, 10_000):
    an = -i * (i - a)
    b += 2
    d = 1 / (an * d + b or tiny)
    c = b + an / c or tiny
    h *= d * c
    if abs(d * c - 1) < 1e-15:
      break
  return h * math.exp(-x + a * math.log(x) - math.lgamma(a))
