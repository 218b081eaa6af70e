"""The table and figures of this folder's page, from points.jsonl.

python experiments/ssmd_protein/tables.py
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import sys

from sbdjax.evals import equal_quality, markdown

HERE = pathlib.Path(__file__).resolve().parent


@functools.cache
def curves() -> dict[str, list[tuple[float, float]]]:
  """Sampler -> (exact mean NFE, nats per residue of held-out proteins, negated), by ascending NFE."""
  found = {}
  for line in (HERE / "points.jsonl").read_text().splitlines():
    record = json.loads(line)
    for x in record.get("likelihood", ()):
      name = "ssmd" if x["decoder"] == "ssmd" else x["noise"]
      found.setdefault(name, []).append((x["mean_nfe"], -x["nats_per_residue"]))
  return {name: sorted(curve) for name, curve in found.items()}


@functools.cache
def settings() -> dict[float, str]:
  """NFE of a self-speculative setting -> (N, dtau)."""
  found = {}
  for line in (HERE / "points.jsonl").read_text().splitlines():
    for x in json.loads(line).get("likelihood", ()):
      if x["decoder"] == "ssmd":
        found[x["mean_nfe"]] = f"({x['n_inner']}, {x['dtau']:g})"
  return found


def ratios(noise: str = "cosine", shift: float = 0.0) -> tuple[float, ...]:
  """NFE of the trunk alone at a self-speculative setting's likelihood / those of the setting.

  Args:
    noise: schedule of the trunk's steps.
    shift: nats per residue by which that likelihood is made worse first.
  """
  found = []
  for cost, quality in curves()["ssmd"]:
    other = equal_quality.cost_at(curves()[noise], quality - shift)
    if other is not None:
      found.append(other / cost)
  return tuple(found)


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
  records = map(json.loads, (HERE / "points.jsonl").read_text().splitlines())
  return max(
    x["stderr"] for r in records for x in r.get("likelihood", ()) if x["decoder"] == "ssmd"
  )


def comparison() -> str:
  """NFE at equal likelihood."""
  rows = []
  for cost, quality in curves()["ssmd"]:
    cosine, linear = (equal_quality.cost_at(curves()[n], quality) for n in ("cosine", "linear"))
    if cosine is None:
      continue
    most = f"more than {curves()['linear'][-1][0]:.0f}"
    shifted = equal_quality.cost_at(curves()["cosine"], quality - 0.006)
    rows.append(
      (
        f"{-quality:.3f}",
        f"{cost:.1f} {settings()[cost]}",
        f"{cosine:.1f}",
        f"{cosine / cost:.1f}",
        None if shifted is None else f"{shifted / cost:.1f}",
        most if linear is None else f"{linear:.1f}",
      )
    )
  head = (
    "nats per residue", "self-speculative NFE (N, Δτ)", "trunk alone, cosine steps: NFE", "ratio",
    "ratio if it were 0.006 nats worse", "trunk alone, linear steps: NFE",
  )  # fmt: skip
  return markdown.table(head, rows)


def main(argv: list[str] | None = None) -> int:
  argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(argv)
  print(comparison())
  return 0


if __name__ == "__main__":
  sys.exit(main())
