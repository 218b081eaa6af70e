"""What samplers cost at equal quality: curves of (cost, quality) read off at each other's points."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sbdjax import bootstrap
from sbdjax.bootstrap import Interval

# (cost, quality) by ascending cost; the higher the quality, the better.
Curve = Sequence[tuple[float, float]]


class Comparison(NamedTuple):
  """A point of one curve against another curve.

  Attributes:
    name, baseline: of the curves.
    quality: of the point, which the baseline reaches too.
    cost: of the point.
    baseline_cost: what the baseline costs at that quality.
  """

  name: str
  baseline: str
  quality: float
  cost: float
  baseline_cost: float

  @property
  def ratio(self) -> float:
    """Above 1 where the point is the cheaper one."""
    return self.baseline_cost / self.cost


class ByText(NamedTuple):
  """A point of a curve, text by text; its quality is sum(over) / sum(under), the higher the better.

  Attributes:
    cost: [N] of each text.
    over, under: [N]; of likelihoods the log-probability and the tokens of each text.
  """

  cost: Sequence[float]
  over: Sequence[float]
  under: Sequence[float]

  @property
  def at(self) -> tuple[float, float]:
    """(mean cost, quality), as of a `Curve`."""
    return float(np.mean(self.cost)), float(np.sum(self.over) / np.sum(self.under))


def cost_at(curve: Curve, quality: float) -> float | None:
  """The cost at which `curve` first reaches `quality`, linear between points.

  None: it never does, or does so from its first point on; nothing is extrapolated.
  """
  for (cost, low), (next_cost, high) in zip(curve, curve[1:], strict=False):
    if low < quality <= high:
      return cost + (quality - low) / (high - low) * (next_cost - cost)
  return None


def compare(curves: Mapping[str, Curve], baselines: Collection[str]) -> list[Comparison]:
  """Every point of a curve that is no baseline against every baseline that reaches its quality."""
  found = []
  for name in (n for n in curves if n not in baselines):
    for baseline in (n for n in curves if n in baselines):
      for cost, quality in curves[name]:
        other = cost_at(curves[baseline], quality)
        if other is not None:
          found.append(Comparison(name, baseline, quality, cost, other))
  return found


def ratio_interval(
  point: ByText, baseline: Sequence[ByText], *, same_texts: bool, resamples: int = 2000
) -> Interval | None:
  """What the baseline costs at the quality of `point` / what the point costs, by bootstrap over texts.

  A resample in which the baseline has that quality from its first point on counts as a ratio of 0, one in
  which it never has, as infinity: nothing is extrapolated.

  Args:
    point: texts of one sampler.
    baseline: the same of each point of the curve that it is compared with, by ascending cost.
    same_texts: all points are of the same N texts, which are then drawn together; otherwise the texts
      of each point are drawn by themselves.
    resamples: how often the texts are drawn.

  Returns:
    None where the baseline does not have the quality of all texts: there is no value to bound.
  """
  points = [point, *baseline]
  cost, quality = point.at
  reached = cost_at([x.at for x in baseline], quality)
  if reached is None:
    return None
  costs_PxR, qualities_PxR = [], []
  for number, x in enumerate(points):
    columns = np.array([x.cost, x.over, x.under], float)
    drawn_3xR = bootstrap.drawn_sums(columns, resamples, 0 if same_texts else number)
    costs_PxR.append(drawn_3xR[0] / len(x.cost))
    qualities_PxR.append(drawn_3xR[1] / drawn_3xR[2])
  found_R = []
  for costs, qualities in zip(np.transpose(costs_PxR), np.transpose(qualities_PxR), strict=True):
    at = cost_at(list(zip(costs[1:], qualities[1:], strict=True)), qualities[0])
    if at is None:
      at = 0.0 if qualities[0] <= qualities[1] else math.inf
    found_R.append(at / costs[0])
  tail = (1 - bootstrap.SHARE) / 2
  low, high = np.quantile(found_R, [tail, 1 - tail], method="closest_observation")
  return Interval(reached / cost, float(low), float(high))


def markdown(found: Iterable[Comparison], quality: str, cost: str) -> list[str]:
  """Lines of a table; `quality` and `cost` head columns. Of negated losses the sign is left out."""
  lines = [
    f"| model | baseline | {quality} | {cost} | {cost} of the baseline there | ratio |",
    "|---|---|---|---|---|---|",
  ]
  for x in found:
    lines.append(
      f"| {x.name} | {x.baseline} | {abs(x.quality):.3f} | {x.cost:.1f} | {x.baseline_cost:.1f} | "
      f"{x.ratio:.2f} |"
    )
  return lines if len(lines) > 2 else ["No quality is reached by both."]
