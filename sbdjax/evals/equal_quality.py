"""What samplers cost at equal quality: curves of (cost, quality) read off at each other's points."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

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
