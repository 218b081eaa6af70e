"""Models that fill texts in any order, compared at equal quality and text by text, from two records.

`experiments/ssmd_text8/sample.py` writes the samples of every setting, `likelihood.py` there the likelihood
of held-out texts under every sampler. Both keep the forwards and the quality of every text.
"""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sbdjax import bootstrap, figures
from sbdjax.bootstrap import Interval
from sbdjax.evals import equal_quality, markdown
from sbdjax.evals.equal_quality import ByText

Line = dict[str, Any]

# A quality of samples and the head of its column.
SPELLING = ("spelling", "words spelled right")
_DIGITS = {"spelling": 3}


class AnyOrderRuns:
  """The records of a folder.

  Attributes:
    blocks: label of a model -> blocks that one of its forwards runs; the first label is the baseline.
    seeds: of the trainings.
    qualities: what is compared -> its name. `spelling`, `likelihood`, and of a judge the prefix of its
      fields: `judge` for `judge_nll`.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    blocks: Mapping[str, int],
    seeds: Sequence[int],
    qualities: Mapping[str, str],
  ):
    self._folder = folder
    self.blocks, self.seeds, self.qualities = blocks, seeds, qualities
    self.baseline = next(iter(blocks))

  @functools.cache  # noqa: B019 (one object lives as long as its page's module)
  def lines(self, name: str) -> list[Line]:
    """Records of a file of the folder."""
    return [json.loads(line) for line in (self._folder / name).read_text().splitlines()]

  def cost_of(self, label: str, nfe: Iterable[float]) -> list[float]:
    """Forwards of a text -> blocks that were run for it, in forwards of the baseline."""
    share = self.blocks[label] / self.blocks[self.baseline]
    return [x * share for x in nfe]

  def sampled(self, label: str, seed: int) -> list[Line]:
    """Records of a model's samples, by their NFE."""
    of = [x for x in self.lines("points.jsonl") if "decoder" in x["settings"]]
    found = [x for x in of if (x["settings"]["label"], x["settings"]["seed"]) == (label, seed)]
    return sorted(found, key=lambda x: x["nfe"])

  def texts(self) -> Line:
    """The record of held-out texts."""
    return next(x for x in self.lines("points.jsonl") if "decoder" not in x["settings"])

  def held_out(self, label: str, seed: int) -> list[Line]:
    """Records of held-out texts under a model's samplers, by their NFE; windows that grow, or steps."""
    of = [x for x in self.lines("likelihood.jsonl") if "mean_nfe" in x and x.get("dtau", 0.0) < 1]
    found = [x for x in of if (x["label"], x["seed"]) == (label, seed)]
    return sorted(found, key=lambda x: x["mean_nfe"])

  @functools.cache  # noqa: B019
  def curve(self, quality: str, label: str, seed: int) -> list[ByText]:
    """A model's points; of losses the negative, since less is better."""
    if quality == "likelihood":
      points = []
      for x in self.held_out(label, seed):
        cost = self.cost_of(label, x["each"]["nfe"])
        points.append(ByText(cost, x["each"]["log_prob"], [x["length"]] * x["texts"]))
      return points
    points = []
    for x in self.sampled(label, seed):
      over, under = columns(x, quality)
      sign = 1 if quality == "spelling" else -1
      points.append(ByText(self.cost_of(label, x["each"]["nfe"]), [sign * y for y in over], under))
    return points

  @functools.cache  # noqa: B019
  def ratios(self, quality: str, label: str, seed: int) -> list[Interval | None]:
    """What the baseline costs at the quality of each setting / that setting's own cost, as in `curve`."""
    baseline = self.curve(quality, self.baseline, seed)
    how = {"same_texts": quality == "likelihood"}
    return [
      equal_quality.ratio_interval(x, baseline, **how) for x in self.curve(quality, label, seed)
    ]

  @functools.cache  # noqa: B019
  def bounds(self, quality: str, label: str, seed: int) -> list[Interval | None]:
    """Lower bounds of `ratios`, for the settings whose quality the baseline has at none of its own; else None.

    The baseline's cost in it is that of its last setting (`equal_quality.least_interval`).
    """
    baseline = self.curve(quality, self.baseline, seed)
    best, how = max(x.at[1] for x in baseline), {"same_texts": quality == "likelihood"}
    return [
      equal_quality.least_interval(x, baseline, **how) if x.at[1] > best else None
      for x in self.curve(quality, label, seed)
    ]

  def cells(self, quality: str, label: str, seed: int) -> dict[str, str]:
    """`ratios` or `bounds` by the name of the setting: the two records need not have the same ones."""
    of = self.held_out if quality == "likelihood" else self.sampled
    both = zip(self.ratios(quality, label, seed), self.bounds(quality, label, seed), strict=True)
    shown = (
      equal_quality.shown(ratio) if bound is None else f"more than {bound.shown(2)}"
      for ratio, bound in both
    )
    return dict(zip(map(setting, of(label, seed)), shown, strict=True))

  def above_one(self, quality: str, label: str) -> tuple[int, int]:
    """In how many comparisons the whole interval is above 1, and of how many."""
    every = [x for seed in self.seeds for x in self.ratios(quality, label, seed)]
    found = [x for x in every if x is not None]
    return sum(x.low is not None and x.low > 1 for x in found), len(found)

  def best(self, label: str) -> Interval:
    """Words spelled right at the setting of a model that spells best."""
    every = [x for seed in self.seeds for x in self.sampled(label, seed)]
    return max(quality_of(x, "spelling") for x in every)

  def comparison(self, label: str) -> str:
    """Every setting of a model: its cost, and what the baseline costs at equal quality."""
    rows = []
    for seed in self.seeds:
      by_quality = [self.cells(quality, label, seed) for quality in self.qualities]
      for x in self.sampled(label, seed):
        (cost,) = self.cost_of(label, [x["nfe"]])
        rows.append(
          (
            seed,
            setting(x),
            f"{cost:.1f}",
            quality_of(x, SPELLING[0]).shown(3),
            *(found.get(setting(x), "") for found in by_quality),
          )
        )
    names = [f"at equal {name}" for name in self.qualities.values()]
    head = (
      "seed", "setting", "cost", SPELLING[1],
      f"{self.baseline}'s cost / its own: {names[0]}", *names[1:],
    )  # fmt: skip
    return markdown.table(head, rows)

  def samples(self, columns: Mapping[str, str]) -> str:
    """All samples.

    Args:
      columns: quality -> head of its column.
    """
    rows = [self._row(self.texts(), "held-out text", columns)]
    for label in self.blocks:
      for seed in self.seeds:
        rows += [self._row(x, f"{label}, seed {seed}", columns) for x in self.sampled(label, seed)]
    head = ("model", "setting", "cost", *columns.values(), "entropy of tokens", "accepted")
    return markdown.table(head, rows)

  def _row(self, x: Line, name: str, columns: Iterable[str]) -> tuple:
    has_cost = "decoder" in x["settings"]
    cost = self.cost_of(x["settings"]["label"], [x["nfe"]])[0] if has_cost else None
    return (
      name,
      setting(x) if has_cost else None,
      None if cost is None else f"{cost:.1f}",
      *(quality_of(x, column).shown(_DIGITS.get(column, 2)) for column in columns),
      f"{x['entropy']:.2f}",
      None if "acceptance" not in x else f"{x['acceptance']:.2f}",
    )

  def draw(self, path: pathlib.Path, cost: str) -> None:
    """Every quality against what was run. Bars: 95 % bootstrap over texts.

    Args:
      cost: what the horizontal axes are called.
    """
    with figures.drawing(path, figures.PAGE, 2.8) as figure:
      panels = figure.subplots(1, len(self.qualities))
      for axes, (quality, title) in zip(panels, self.qualities.items(), strict=True):
        for label in self.blocks:
          for seed in self.seeds:
            self._line(axes, quality, label, seed, named=axes is panels[0])
        figures.log_axis(axes, "x")
        axes.set(xlabel=cost, ylabel=_AXES.get(quality, title))
      figures.legend_below(figure, 4)

  def _line(self, axes: Any, quality: str, label: str, seed: int, *, named: bool) -> None:
    """One model of one seed in one panel."""
    sign, number = 1 if quality == "spelling" else -1, list(self.blocks).index(label)
    points = self.curve(quality, label, seed)
    found = bootstrap.ratios_of_sums([(x.over, x.under) for x in points])
    name = f"{label}, seed {seed}" if len(self.seeds) > 1 else label
    axes.errorbar(
      [x.at[0] for x in points], [sign * x.value for x in found], yerr=figures.bars(found)[::sign], elinewidth=0.6,
      color=figures.COLOURS[number], marker=figures.MARKERS[number],
      linestyle="-" if seed == self.seeds[0] else "--", label=name if named else None,
    )  # fmt: skip


_AXES = {"spelling": "words spelled right", "likelihood": "nats per token of the sampler"}


def columns(line: Line, quality: str) -> tuple[list[float], list[float]]:
  """Of each text: what is counted, and of how many."""
  names = ("correct", "words") if quality == "spelling" else (f"{quality}_nll", f"{quality}_tokens")
  return line["each"][names[0]], line["each"][names[1]]


def quality_of(line: Line, quality: str) -> Interval:
  """Of all texts of a record."""
  return bootstrap.ratio_of_sums(*columns(line, quality))


def nats(line: Line) -> Interval:
  """Minus the log-probability per token, of a record of likelihoods."""
  return bootstrap.ratio_of_sums(
    [-x for x in line["each"]["log_prob"]], [line["length"]] * line["texts"]
  )


def setting(line: Line) -> str:
  """Of the sampler, in a cell; of a record of samples or of likelihoods."""
  decoder = line["settings"]["decoder"] if "settings" in line else line
  if "steps" in decoder:
    return f"{decoder['steps']} steps"
  return f"N = {decoder['n_inner']}, Δτ = {decoder['dtau']:g}"
