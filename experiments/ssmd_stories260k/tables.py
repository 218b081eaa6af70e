"""Tables and the figure of this folder's page, from its records.

python experiments/ssmd_stories260k/tables.py
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import sys
from typing import Any

from sbdjax import bootstrap, figures
from sbdjax.bootstrap import Interval
from sbdjax.evals import equal_quality, markdown
from sbdjax.evals.equal_quality import ByText

HERE = pathlib.Path(__file__).resolve().parent
SEEDS = (0, 1)
# One forward of the masked-diffusion model runs five blocks, one of the other six.
BLOCKS = {"MDM": 5, "SSMD": 6}
QUALITIES = {
  "spelling": "words spelled right",
  "judge": "judge NLL, nats per token",
  "likelihood": "nats per token of the sampler",
}


@functools.cache
def lines(name: str) -> list[dict[str, Any]]:
  """Records of a file of this folder."""
  return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


def cost_of(label: str, nfe: list[float]) -> list[float]:
  """Forwards of a text -> blocks that were run for it, in forwards of five blocks."""
  return [x * BLOCKS[label] / BLOCKS["MDM"] for x in nfe]


def sampled(seed: int, label: str) -> list[dict[str, Any]]:
  """Records of a model's samples, by their NFE."""
  found = [
    x for x in lines("points.jsonl")
    if (x["settings"]["label"], x["settings"]["seed"]) == (label, seed)
  ]  # fmt: skip
  return sorted(found, key=lambda x: x["nfe"])


def held_out(seed: int, label: str) -> list[dict[str, Any]]:
  """Records of held-out texts under a model's samplers, by their NFE; windows that grow, or steps."""
  found = [
    x for x in lines("likelihood.jsonl")
    if (x["label"], x["seed"]) == (label, seed) and "mean_nfe" in x and x.get("dtau", 0.0) < 1
  ]  # fmt: skip
  return sorted(found, key=lambda x: x["mean_nfe"])


@functools.cache
def curve(quality: str, seed: int, label: str) -> list[ByText]:
  """A model's points; of losses the negative, since less is better."""
  if quality == "likelihood":
    return [
      ByText(cost_of(label, x["each"]["nfe"]), x["each"]["log_prob"], [x["length"]] * x["texts"])
      for x in held_out(seed, label)
    ]
  points = []
  for x in sampled(seed, label):
    each = x["each"]
    if quality == "spelling":
      over, under = each["correct"], each["words"]
    else:
      over, under = [-nll for nll in each["judge_nll"]], each["judge_tokens"]
    points.append(ByText(cost_of(label, each["nfe"]), over, under))
  return points


@functools.cache
def ratios(quality: str, seed: int) -> list[Interval | None]:
  """What masked diffusion costs at the quality of each self-speculative setting / its own cost."""
  baseline = curve(quality, seed, "MDM")
  how = {"same_texts": quality == "likelihood"}
  return [equal_quality.ratio_interval(x, baseline, **how) for x in curve(quality, seed, "SSMD")]


def above_one(quality: str) -> tuple[int, int]:
  """In how many comparisons the whole interval is above 1, and of how many."""
  found = [x for seed in SEEDS for x in ratios(quality, seed) if x is not None]
  return sum(x.low > 1 for x in found), len(found)


def comparison() -> str:
  """NFE at equal quality."""
  rows = []
  for seed in SEEDS:
    points = sampled(seed, "SSMD")
    by_quality = [ratios(quality, seed) for quality in QUALITIES]
    for number, x in enumerate(points):
      decoder = x["settings"]["decoder"]
      rows.append(
        (
          seed,
          f"{decoder['n_inner']}, {decoder['dtau']:g}",
          f"{x['nfe'] * BLOCKS['SSMD'] / BLOCKS['MDM']:.1f}",
          spelled(x).shown(3),
          *(equal_quality.shown(found[number]) for found in by_quality),
        )
      )
  head = (
    "seed", "N, Δτ", "cost", "words spelled right", "MDM's cost / its own: at equal spelling",
    "at equal judge NLL", "at equal likelihood",
  )  # fmt: skip
  return markdown.table(head, rows)


def spelled(record: dict[str, Any]) -> Interval:
  """Share of the words that the training text has."""
  return bootstrap.ratio_of_sums(record["each"]["correct"], record["each"]["words"])


def best(label: str) -> Interval:
  """`spelled` of the setting of a model at which it is highest."""
  return max(spelled(x) for seed in SEEDS for x in sampled(seed, label))


def findings() -> str:
  """What the tables say, in words."""
  names = {
    "spelling": "equal spelling",
    "judge": "equal NLL under the judge",
    "likelihood": "equal likelihood of held-out text",
  }
  told = []
  for quality, name in names.items():
    ends = [equal_quality.ends_shown(ratios(quality, seed)) for seed in SEEDS]
    above, count = above_one(quality)
    told.append(
      f"* At {name} masked diffusion costs {ends[0]} times as much with one seed, {ends[1]} with the other; "
      f"{above} of {count} intervals lie above 1."
    )
  (text, *_) = (x for x in lines("points.jsonl") if x["settings"]["label"] not in BLOCKS)
  told.append(
    f"* **These models do not read well**: at best {best('SSMD').shown()} of the words are spelt right by SSMD and "
    f"{best('MDM').shown()} by MDM, of held-out text {spelled(text).shown()}."
  )
  return "\n".join(told)


def in_short() -> str:
  """A sentence for the page of all results."""
  ends = [equal_quality.ends_shown(ratios("likelihood", seed)) for seed in SEEDS]
  above, count = above_one("likelihood")
  return (
    f"the same from a pretrained model, with paired intervals: at equal likelihood masked diffusion costs {ends[0]} times as "
    f"much with one seed and {ends[1]} with the other, {above} of {count} intervals above 1; **young models**, at best "
    f"{best('SSMD').shown(0, 100)} % of the words are spelt right"
  )


def samples() -> str:
  """All samples."""
  rows = []
  for x in lines("points.jsonl"):
    label, each = x["settings"]["label"], x["each"]
    decoder = x["settings"].get("decoder", {})
    if label not in BLOCKS:
      if x["settings"]["seed"] != SEEDS[0]:
        continue
      setting = cost = None
    else:
      setting = (
        f"{decoder['steps']} steps"
        if "steps" in decoder
        else f"N = {decoder['n_inner']}, Δτ = {decoder['dtau']:g}"
      )
      cost = f"{x['nfe'] * BLOCKS[label] / BLOCKS['MDM']:.1f}"
    rows.append(
      (
        label if cost is None else f"{label}, seed {x['settings']['seed']}",
        setting,
        cost,
        spelled(x).shown(3),
        bootstrap.ratio_of_sums(each["judge_nll"], each["judge_tokens"]).shown(2),
        f"{x['entropy']:.2f}",
        None if "acceptance" not in x else f"{x['acceptance']:.2f}",
      )
    )
  head = (
    "model", "setting", "cost", "words spelled right", "judge NLL", "entropy of tokens", "accepted",
  )  # fmt: skip
  return markdown.table(head, rows)


def draw(path: pathlib.Path) -> None:
  """Spelling, judge NLL and likelihood against what was run. Bars: 95 % bootstrap over texts."""
  with figures.drawing(path, figures.PAGE, 2.8) as figure:
    panels = figure.subplots(1, len(QUALITIES))
    for axes, (quality, title) in zip(panels, QUALITIES.items(), strict=True):
      sign = 1 if quality == "spelling" else -1
      for number, label in enumerate(BLOCKS):
        for seed in SEEDS:
          points = curve(quality, seed, label)
          found = bootstrap.ratios_of_sums([(x.over, x.under) for x in points])
          ys = [sign * x.value for x in found]
          ends = [(abs(x.value - x.low), abs(x.high - x.value)) for x in found]
          lower, upper = zip(*(pair[::sign] for pair in ends), strict=True)
          axes.errorbar(
            [x.at[0] for x in points], ys, yerr=(lower, upper), elinewidth=0.6,
            color=figures.COLOURS[number], marker=figures.MARKERS[number],
            linestyle="-" if seed == SEEDS[0] else "--",
            label=f"{label}, seed {seed}" if axes is panels[0] else None,
          )  # fmt: skip
      figures.log_axis(axes, "x")
      axes.set(xlabel="cost, forwards of five blocks", ylabel=title)
    figures.legend_below(figure, 4)


def main(argv: list[str] | None = None) -> int:
  argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(argv)
  print(comparison(), samples(), sep="\n\n")
  return 0


if __name__ == "__main__":
  sys.exit(main())
