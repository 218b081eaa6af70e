"""The table and figures of this folder's page, from points.jsonl.

python experiments/ssmd_protein/tables.py
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import sys
from typing import Any

from sbdjax import bootstrap
from sbdjax.bootstrap import Interval
from sbdjax.evals import equal_quality, markdown
from sbdjax.evals.equal_quality import WithError

HERE = pathlib.Path(__file__).resolve().parent


@functools.cache
def records(name: str = "points.jsonl") -> list[dict[str, Any]]:
  """Lines of a file of this folder."""
  return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


@functools.cache
def curves() -> dict[str, list[WithError]]:
  """Sampler -> exact mean NFE, nats per residue of held-out proteins, negated; by ascending NFE."""
  found: dict[str, list[WithError]] = {}
  for record in records():
    for x in record.get("likelihood", ()):
      name = "ssmd" if x["decoder"] == "ssmd" else x["noise"]
      found.setdefault(name, []).append(
        WithError(x["mean_nfe"], -x["nats_per_residue"], x["stderr"])
      )
  return {name: sorted(curve) for name, curve in found.items()}


@functools.cache
def settings() -> dict[float, str]:
  """NFE of a self-speculative setting -> (N, dtau)."""
  return {
    x["mean_nfe"]: f"({x['n_inner']}, {x['dtau']:g})"
    for record in records()
    for x in record.get("likelihood", ())
    if x["decoder"] == "ssmd"
  }


def with_errors(noise: str = "cosine") -> list[Interval | None]:
  """`ratios` without a shift, each sampler as if measured on proteins of its own."""
  return [equal_quality.interval_of_errors(x, curves()[noise]) for x in curves()["ssmd"]]


def ratios(noise: str = "cosine", shift: float = 0.0) -> tuple[float, ...]:
  """NFE of the trunk alone at a self-speculative setting's likelihood / those of the setting.

  Args:
    noise: schedule of the trunk's steps.
    shift: nats per residue by which that likelihood is made worse first.
  """
  found = []
  for cost, quality, _ in curves()["ssmd"]:
    other = cost_at(noise, quality - shift)
    if other is not None:
      found.append(other / cost)
  return tuple(found)


def cost_at(noise: str, quality: float) -> float | None:
  """NFE at which the trunk alone has a likelihood."""
  return equal_quality.cost_at([x[:2] for x in curves()[noise]], quality)


def spread(noise: str = "cosine", shift: float = 0.0) -> tuple[float, float]:
  """The smallest and the largest of `ratios`."""
  found = ratios(noise, shift)
  return min(found), max(found)


def largest(shift: float = 0.0) -> float:
  """The ratio at the setting for which it is largest without a shift, after `shift` nats."""
  plain = ratios()
  return ratios(shift=shift)[plain.index(max(plain))]


def stderr() -> float:
  """The largest standard error over proteins of a self-speculative sampler's likelihood."""
  return max(x.stderr for x in curves()["ssmd"])


def comparison() -> str:
  """NFE at equal likelihood."""
  rows = []
  for (cost, quality, error), ratio in zip(curves()["ssmd"], with_errors(), strict=True):
    cosine, linear = (cost_at(noise, quality) for noise in ("cosine", "linear"))
    if cosine is None:
      continue
    most = f"more than {curves()['linear'][-1].cost:.0f}"
    shifted = cost_at("cosine", quality - 0.006)
    rows.append(
      (
        bootstrap.normal(-quality, error).shown(3),
        f"{cost:.1f} {settings()[cost]}",
        f"{cosine:.1f}",
        equal_quality.shown(ratio, 1),
        None if shifted is None else f"{shifted / cost:.1f}",
        most if linear is None else f"{linear:.1f}",
      )
    )
  head = (
    "nats per residue", "self-speculative NFE (N, Δτ)", "trunk alone, cosine steps: NFE", "ratio",
    "ratio if it were 0.006 nats worse", "trunk alone, linear steps: NFE",
  )  # fmt: skip
  return markdown.table(head, rows)


def bound(record: dict[str, Any]) -> Interval:
  """Nats per residue under the trunk, with its error over samples or proteins."""
  return bootstrap.normal(record["bound"], record["bound_stderr"])


def held_out() -> dict[str, Any]:
  """The record of held-out proteins."""
  (found,) = [r for r in records() if "bound" in r and "nfe" not in r]
  return found


def sampled() -> list[dict[str, Any]]:
  """Records of samples, from the worst bound to the best."""
  return sorted((r for r in records() if "nfe" in r), key=lambda r: -r["bound"])


def samples() -> str:
  """Samples of both, by their settings."""
  rows = [
    (
      "held-out proteins",
      None,
      None,
      bound(held_out()).shown(),
      f"{held_out()['entropy']:.2f}",
      None,
    )
  ]
  for record in (r for r in records() if "nfe" in r):
    decoder = record["settings"]["decoder"]
    alone = decoder["name"] == "mdm"
    rows.append(
      (
        "trunk alone" if alone else "with the causal block",
        f"{decoder['steps']} steps" if alone else f"N = {decoder['n_inner']}, Δτ = {decoder['dtau']:g}",
        f"{record['nfe']:.1f}",
        bound(record).shown(),
        f"{record['entropy']:.2f}",
        None if alone else f"{record['acceptance']:.2f}",
      )
    )  # fmt: skip
  head = (
    "sampler",
    "setting",
    "NFE",
    "bound under the trunk, nats per residue",
    "entropy",
    "accepted",
  )
  return markdown.table(head, rows)


def loss(run: str, metric: str) -> float:
  """The last bound of a training, nats per residue of validation proteins."""
  found = [
    x["value"] for x in records("losses.jsonl") if x["run"] == run and x["metric"].endswith(metric)
  ]
  return found[-1]


def headroom() -> dict[str, Any]:
  """What the drafts' loss by number of masks says of held-out proteins."""
  (found,) = [r for r in records() if "by_masks" in r]
  return found


def by_masks(first: int, last: int) -> tuple[float, float]:
  """The smallest and the largest loss of drafts with `first` to `last` masked residues."""
  found = headroom()["by_masks"][first - 1 : last]
  return min(found), max(found)


def in_short() -> str:
  """A sentence for the page of all results."""
  ends = equal_quality.ends_shown(with_errors(), 1)
  return (
    f"a causal block on a frozen protein model: its trunk alone needs {ends} times the NFE at equal likelihood (by standard "
    f"errors as if each sampler had been measured on proteins of its own). **Fragile**: the curve is flat there, and {largest():.1f} "
    f"becomes {largest(0.006):.1f} if its likelihood were 0.006 nats per residue worse (standard error over proteins: {stderr():.2f})"
  )


def main(argv: list[str] | None = None) -> int:
  argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(argv)
  print(comparison(), samples(), sep="\n\n")
  return 0


if __name__ == "__main__":
  sys.exit(main())
