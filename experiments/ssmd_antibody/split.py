"""Heavy chains, split by clone: training, validation, test, and the therapeutic ones as a test of their own.

  python experiments/ssmd_antibody/split.py --human=HUMAN.fasta --mouse=MOUSE.fasta \
    --therapeutic=THERAPEUTIC.fasta --germlines=germlines.py --out=runs/antibody --record=split.jsonl

Two chains are of one cluster where they have the same nearest V gene and CDR3s of one length that agree in
at least 80 % of their places, or the same CDR3, and clusters are closed under this. No cluster is on both
sides: human clusters are dealt out whole, and chains in a cluster with a therapeutic one are left out of
training. Mouse chains, of few clones, only train, one of each cluster. Headers say `chain=H`.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import domains
import numpy as np

from sbdjax.evals import record

AGREE = 0.8


class Chain(NamedTuple):
  """A heavy chain. `kind`: human, mouse or therapeutic; `gene`: the nearest V, without its allele."""

  name: str
  kind: str
  body: str
  cdr3: str
  gene: str


def read_heavy(path: pathlib.Path) -> list[tuple[str, str]]:
  """(name, residues) of the records whose header has the field chain=H."""
  found = []
  for entry in path.read_text().split(">")[1:]:
    header, *lines = entry.splitlines()
    name, *fields = header.split("|")
    if "chain=H" in fields:
      found.append((name, "".join(lines)))
  return found


def clusters(chains: Sequence[Chain]) -> list[int]:
  """The cluster of every chain: the smallest number of a chain in it."""
  parent = list(range(len(chains)))

  def root(i: int) -> int:
    while parent[i] != i:
      parent[i] = parent[parent[i]]
      i = parent[i]
    return i

  def join(i: int, j: int) -> None:
    i, j = root(i), root(j)
    parent[max(i, j)] = min(i, j)

  by_loop, by_gene = collections.defaultdict(list), collections.defaultdict(list)
  for i, x in enumerate(chains):
    by_loop[x.cdr3].append(i)
    by_gene[x.gene, len(x.cdr3)].append(i)
  for same in by_loop.values():
    for i in same[1:]:
      join(same[0], i)
  for same in by_gene.values():
    loops = np.array([list(chains[i].cdr3) for i in same])
    for at, i in enumerate(same):
      for other in np.flatnonzero((loops[at + 1 :] == loops[at]).mean(axis=1) >= AGREE):
        join(i, same[at + 1 + int(other)])
  return [root(i) for i in range(len(chains))]


def split(
  chains: Sequence[Chain], cluster: Sequence[int], held_out: int, seed: int
) -> dict[str, list[int]]:
  """Numbers of the chains of each part; about `held_out` human ones for validation and for test each."""
  members = collections.defaultdict(list)
  for i, c in enumerate(cluster):
    members[c].append(i)
  parts: dict[str, list[int]] = {"train": [], "valid": [], "test": [], "therapeutic": []}
  order = np.random.default_rng(seed).permutation(len(members))
  for same in (list(members.values())[n] for n in order):
    kinds = {k: [i for i in same if chains[i].kind == k] for k in ("human", "mouse", "therapeutic")}
    parts["therapeutic"] += kinds["therapeutic"]
    if kinds["therapeutic"]:
      continue
    if kinds["human"] and not kinds["mouse"]:
      part = next((p for p in ("valid", "test") if len(parts[p]) < held_out), "train")
      parts[part] += kinds["human"]
    else:
      parts["train"] += kinds["human"] + kinds["mouse"][:1]
  shuffle = np.random.default_rng(seed + 1).permutation
  return {name: [part[i] for i in shuffle(len(part))] for name, part in parts.items()}


def fasta(chains: Iterable[Chain]) -> str:
  return "".join(f">{x.name}|{x.kind}|{x.gene}|{x.cdr3}\n{x.body}\n" for x in chains)


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  add = parser.add_argument
  for kind in ("human", "mouse", "therapeutic"):
    add(f"--{kind}", required=True, type=pathlib.Path, help="FASTA")
  add("--germlines", required=True, type=pathlib.Path, help="germlines.py of ANARCI")
  add("--out", required=True, type=pathlib.Path, help="folder of the FASTA files that are written")
  add("--record", required=True, type=pathlib.Path, help="JSON lines that say how many")
  add("--held_out", type=int, default=160, help="human chains of validation and of test")
  add("--seed", type=int, default=0)
  args = parser.parse_args(argv)
  about, found = record.provenance(), []
  germlines = domains.read_germlines(args.germlines, ("human", "mouse"))
  for kind in ("human", "mouse", "therapeutic"):
    heavy = read_heavy(getattr(args, kind))
    whole = [(name, body, loop) for name, body in heavy if (loop := domains.cdr3(body)) is not None]
    genes = domains.nearest([body for _, body, _ in whole], germlines)
    for (name, body, loop), (gene, _) in zip(whole, genes, strict=True):
      found.append(Chain(name, kind, body, loop, gene.split("*")[0]))
    print(f"{kind}: {len(whole)} of {len(heavy)} heavy chains are whole")
  cluster = clusters(found)
  parts = split(found, cluster, args.held_out, args.seed)
  args.out.mkdir(parents=True, exist_ok=True)
  with args.record.open("a") as out:
    for name, part in parts.items():
      (args.out / f"{name}.fasta").write_text(fasta(found[i] for i in part))
      by_kind = collections.Counter(found[i].kind for i in part)
      line = {
        "part": name,
        "chains": len(part),
        "clusters": len({cluster[i] for i in part}),
        **{f"{kind}_chains": by_kind[kind] for kind in sorted(by_kind)},
        "agree": AGREE,
        "seed": args.seed,
        **about,
      }
      print(line)
      out.write(json.dumps(line) + "\n")
  return 0


if __name__ == "__main__":
  sys.exit(main())
