"""Tables and the figure of this folder's page, from its records.

python experiments/ssmd_antibody/tables.py
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import pathlib
import sys
from typing import Any

import numpy as np

from sbdjax import bootstrap, figures
from sbdjax.bootstrap import Interval
from sbdjax.evals import equal_quality, markdown
from sbdjax.evals.equal_quality import ByText

HERE = pathlib.Path(__file__).resolve().parent
NOISES = ("cosine", "linear")
LIMIT = "one token a forward"
# Seen as one curve each; windows of the self-speculative sampler have a schedule, too.
CURVES = {
  ("mdm", "cosine"): "trunk alone, cosine steps",
  ("mdm", "linear"): "trunk alone, linear steps",
  ("ssmd", "cosine"): "with the block, cosine windows",
  ("ssmd", "linear"): "with the block, linear windows",
}


@functools.cache
def lines(name: str) -> list[dict[str, Any]]:
  """Records of a file of this folder."""
  return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


def setting_of(x: dict[str, Any]) -> str:
  """Of a sampler, in words."""
  if x["decoder"] == "mdm":
    return LIMIT if x["noise"] == LIMIT else f"{x['steps']} steps"
  size = x.get("dtau", x.get("slope"))
  n = "∞" if x["n_inner"] >= 128 else x["n_inner"]
  return f"N = {n}, {'Δτ' if 'dtau' in x else 'slope'} = {size:g}"


def curve_of(x: dict[str, Any]) -> tuple[str, str]:
  """Decoder and schedule of a sampler."""
  return x["decoder"], x["window"] if x["decoder"] == "ssmd" else x["noise"]


@functools.cache
def held_out(as_paper: bool = False) -> dict[tuple[str, str], dict[str, ByText]]:
  """Curve -> setting -> held-out chains, by ascending cost; all orders of a chain averaged.

  Args:
    as_paper: costs in passes through all blocks of a sampler's own network, in place of blocks run, in
      forwards of the trunk.
  """
  cost, log_prob = collections.defaultdict(list), collections.defaultdict(list)
  chains = list(dict.fromkeys(x["chain"] for x in lines("likelihood.jsonl")))
  length = lines("likelihood.jsonl")[0]["length"]
  for x in lines("likelihood.jsonl"):
    trunk, head = x["blocks"]
    for s in x["samplers"]:
      key = curve_of(s), setting_of(s), x["chain"]
      block = np.array(s.get("causal_passes", 0.0))
      unit = trunk + head if as_paper and s["decoder"] == "ssmd" else trunk
      cost[key] += ((trunk * np.array(s["trunk_passes"]) + head * block) / unit).tolist()
      log_prob[key] += s["log_prob"]
  found: dict[tuple[str, str], dict[str, ByText]] = collections.defaultdict(dict)
  mean = lambda of, curve, setting: [float(np.mean(of[curve, setting, c])) for c in chains]
  for curve, setting in dict.fromkeys(key[:2] for key in cost):
    at = ByText(mean(cost, curve, setting), mean(log_prob, curve, setting), [length] * len(chains))
    found[curve][setting] = at
  for noise in NOISES:
    found["mdm", noise] |= found["mdm", LIMIT]
  return {name: dict(sorted(found[name].items(), key=lambda kv: kv[1].at[0])) for name in CURVES}


def nats(x: ByText) -> Interval:
  """Per residue; 95 % over chains."""
  return bootstrap.ratio_of_sums([-v for v in x.over], x.under)


def limit() -> ByText:
  """The trunk alone, one token a forward."""
  return held_out()["mdm", "cosine"][LIMIT]


def gain(x: ByText) -> Interval:
  """Nats per residue by which chains are likelier than under the trunk alone at its best; paired."""
  over = [a - b for a, b in zip(x.over, limit().over, strict=True)]
  return bootstrap.ratio_of_sums(over, x.under)


def least(x: ByText, noise: str, as_paper: bool = False) -> Interval:
  """What the trunk alone costs at least at the likelihood of `x` / what `x` costs; paired."""
  baseline = list(held_out(as_paper)["mdm", noise].values())
  return equal_quality.least_interval(x, baseline, same_texts=True)


def is_reached(x: ByText, noise: str) -> bool:
  """Whether the trunk alone has that likelihood at some cost, over all chains."""
  points = [y.at for y in held_out()["mdm", noise].values()]
  return x.at[1] <= max(quality for _, quality in points)


def speculative(as_paper: bool = False) -> dict[tuple[str, str], ByText]:
  """(schedule of windows, setting) -> chains under self-speculation, by ascending cost."""
  found = {(w, s): x for w in NOISES for s, x in held_out(as_paper)["ssmd", w].items()}
  return dict(sorted(found.items(), key=lambda kv: kv[1].at[0]))


def smallest(as_paper: bool = False) -> Interval:
  """Of all settings and both schedules of the trunk's steps, the ratio with the lowest lower end."""
  found = [least(x, n, as_paper) for x in speculative(as_paper).values() for n in NOISES]
  return min(found, key=lambda x: x.low)


def passed() -> tuple[int, int]:
  """Settings whose ratio is at least 1.5 with the interval above 1, of the schedule that is worse for them."""
  found = [[least(x, n) for n in NOISES] for x in speculative().values()]
  good = [all(y.value >= 1.5 and y.low > 1 for y in pair) for pair in found]
  return sum(good), len(good)


def unreached() -> tuple[int, int]:
  """Settings whose likelihood the trunk alone has at no number of steps of either schedule."""
  found = [not any(is_reached(x, n) for n in NOISES) for x in speculative().values()]
  return sum(found), len(found)


def shown(x: Interval, reached: bool) -> str:
  """`1.23 [1.10, 1.40]`, or what is a bound alone."""
  text = f"{x.value:.2f} [{x.low:.2f}, {x.high:.2f}]"
  return text if reached else f"more than {text}"


def comparison() -> str:
  """Cost at equal likelihood of held-out chains."""
  rows = []
  for (window, setting), x in speculative().items():
    rows.append(
      (
        f"{window}: {setting}",
        f"{x.at[0]:.1f}",
        nats(x).shown(3),
        gain(x).shown(3),
        *(shown(least(x, noise), is_reached(x, noise)) for noise in NOISES),
      )
    )
  head = (
    "windows of the block", "cost", "nats per residue", "likelier than the trunk at its best",
    "trunk's cost / its own: cosine steps", "linear steps",
  )  # fmt: skip
  return markdown.table(head, rows)


def alone() -> str:
  """The trunk alone."""
  cosine, linear = (held_out()["mdm", noise] for noise in NOISES)
  rows = []
  for setting, x in cosine.items():
    y = linear[setting]
    rows.append((setting, f"{x.at[0]:.1f}", nats(x).shown(3), f"{y.at[0]:.1f}", nats(y).shown(3)))
  head = ("trunk alone", "cosine: cost", "nats per residue", "linear: cost", "nats per residue")
  return markdown.table(head, rows)


def sampled() -> list[dict[str, Any]]:
  """Records of samples, with their `cost` and `curve`; then by cost."""
  found = []
  for x in lines("points.jsonl"):
    if "decoder" not in x["settings"]:
      continue
    decoder, (trunk, head) = x["settings"]["decoder"], x["settings"]["blocks"]
    scale = (trunk + head) / trunk if decoder["name"] == "ssmd" else 1.0
    about = {**decoder, "decoder": decoder["name"]}
    found.append(x | {"cost": scale * x["nfe"], "curve": curve_of(about), "about": about})
  return sorted(found, key=lambda x: (list(CURVES).index(x["curve"]), x["cost"]))


def share(x: dict[str, Any], field: str) -> Interval:
  """The mean of `valid` or `identity` over samples."""
  return bootstrap.ratio_of_sums(x["each"][field], [1] * len(x["each"][field]))


def samples() -> str:
  """All samples, after held-out chains of the same length."""
  rows = []
  for x in lines("points.jsonl"):
    if "decoder" not in x["settings"]:
      name = f"held-out chains, {pathlib.Path(x['settings']['fasta']).stem}"
      rows.append((name, None, None, *_said_of(x)))
  for x in sampled():
    rows.append((CURVES[x["curve"]], setting_of(x["about"]), f"{x['cost']:.1f}", *_said_of(x)))
  head = (
    "chains", "setting", "cost", "whole domains", "germline identity", "heavy", "V genes", "of",
  )  # fmt: skip
  return markdown.table(head, rows)


def _said_of(x: dict[str, Any]) -> tuple[str, str, str, int, int]:
  count = len(x["each"]["valid"])
  shares = share(x, "valid").shown(2), share(x, "identity").shown(3)
  return *shares, f"{x['heavy']:.2f}", x["genes"], count


def loss(kind: str) -> float:
  """The last bound on validation chains of `draft` or `target`, nats per residue."""
  found = [x for x in lines("losses.jsonl") if x["metric"] == f"eval/{kind}_nelbo"]
  return found[-1]["value"]


def split() -> str:
  """The parts of the data."""
  rows = [
    (x["part"], x["chains"], x.get("human_chains", 0), x.get("mouse_chains", 0), x["clusters"])
    for x in lines("split.jsonl")
  ]
  return markdown.table(("part", "heavy chains", "human", "mouse", "clones"), rows)


def measured() -> tuple[int, int, int]:
  """Held-out chains, orders of each, plans of each."""
  found = lines("likelihood.jsonl")
  chains = len({x["chain"] for x in found})
  orders = sum(x["orders"] for x in found) // chains
  return chains, orders, orders * found[0]["plans_per_order"]


def findings() -> str:
  """What the tables say, in words."""
  low, (above, count), never = smallest(), passed(), unreached()[0]
  best = max(speculative().values(), key=lambda x: x.at[1])
  flat = max(nats(x).value for x in speculative().values()) - nats(best).value
  trunk, with_block = (
    [x for x in sampled() if x["curve"][0] == decoder] for decoder in ("mdm", "ssmd")
  )
  ends = lambda group, field: "{:.2f} to {:.2f}".format(
    *(pick(x[field] for x in group) for pick in (min, max))
  )
  goal = "reached" if low.value >= 1.5 and low.low > 1 else "missed"
  return "\n".join(
    (
      f"* At equal likelihood of held-out therapeutic heavy chains the trunk alone costs at least {low.value:.1f} "
      f"[{low.low:.1f}, {low.high:.1f}] times as much, in the worst of {count} settings and with the better of its two "
      f"schedules; {above} of {count} have at least 1.5 with the interval above 1. **The aim, 1.5 in every setting, is {goal}.**",
      f"* At {never} of {count} settings the trunk alone does not have that likelihood at any number of steps: with one "
      f"token a forward it is at {nats(limit()).shown(3)} nats per residue, with the block the best setting is at "
      f"{nats(best).shown(3)}, and the cheapest costs {min(x.at[0] for x in speculative().values()):.1f} forwards. Settings "
      f"with the block differ by {flat:.3f} nats at most.",
      f"* Samples are whole domains in {ends(with_block, 'valid')} of the cases with the block and in "
      f"{ends(trunk, 'valid')} with the trunk alone; germline identity is {ends(with_block, 'identity')} and "
      f"{ends(trunk, 'identity')}.",
    )
  )


def in_short() -> str:
  """A sentence for the page of all results."""
  above, count = passed()
  low, never = smallest(), unreached()[0]
  return (
    f"a causal block on frozen AntiBERTy (26M parameters), held-out therapeutic heavy chains: the trunk alone needs at least "
    f"{low.value:.1f} [{low.low:.1f}, {low.high:.1f}] times the cost at equal likelihood, {above} of {count} settings reach the aim of "
    f"1.5, and {never} likelihoods it never has; **not all of it is speculation**: the block is trained on such chains, the trunk is not"
  )


def draw(path: pathlib.Path) -> None:
  """Likelihood, whole domains and germline identity against cost. Bars: 95 % over chains or samples."""
  style = {
    name: dict(
      color=figures.COLOURS[name[0] == "ssmd"],
      marker=figures.MARKERS[list(CURVES).index(name)],
      linestyle="-" if name[1] == "cosine" else "--",
    )
    for name in CURVES
  }
  with figures.drawing(path, figures.PAGE, 2.9) as figure:
    first, *others = figure.subplots(1, 3)
    for name, points in held_out().items():
      # Differences are paired: bars of each would be of the chains, the same for all.
      first.plot(
        *_columns([(x.at[0], -x.at[1]) for x in points.values()]), label=CURVES[name], **style[name]
      )
    for axes, field in zip(others, ("valid", "identity"), strict=True):
      for name in CURVES:
        group = [x for x in sampled() if x["curve"] == name]
        found = [share(x, field) for x in group]
        bars = _columns([(x.value - x.low, x.high - x.value) for x in found])
        axes.errorbar(
          [x["cost"] for x in group],
          [x.value for x in found],
          yerr=bars,
          elinewidth=0.6,
          **style[name],
        )
      for x, line in zip(_natural(), (":", "-."), strict=False):
        axes.axhline(
          x[field], color=figures.GREY, linestyle=line,
          label=f"held-out chains, {pathlib.Path(x['settings']['fasta']).stem}" if field == "valid" else None,
        )  # fmt: skip
    titles = ("nats per residue, held out", "whole domains, samples", "germline identity, samples")
    for axes, title in zip((first, *others), titles, strict=True):
      figures.log_axis(axes, "x")
      axes.set(xlabel="cost, forwards of the trunk", ylabel=title)
    figures.legend_below(figure, 2)


def _natural() -> list[dict[str, Any]]:
  return [x for x in lines("points.jsonl") if "decoder" not in x["settings"]]


def _columns(pairs: list[tuple[float, float]]) -> tuple[Any, ...]:
  return tuple(zip(*pairs, strict=True)) if pairs else ((), ())


def main(argv: list[str] | None = None) -> int:
  argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(argv)
  print(comparison(), alone(), samples(), sep="\n\n")
  return 0


if __name__ == "__main__":
  sys.exit(main())
