"""Variable domains of antibodies: are they whole, what is their CDR3, which germline V is nearest.

Positions are IMGT's. A whole domain has cysteines 23 and 104 and tryptophan 41 as far apart as loops allow,
and behind CDR3 the J motif [WF]GxG. Germline genes are those that ANARCI ships (`germlines.py`, BSD-3).
"""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Sequence

import numpy as np

# Residues before C23, between C23 and W41, between W41 and C104, of CDR3, and after the motif.
_HEAVY = re.compile(r".{19,23}C.{12,17}W.{56,62}C(.{3,35}?)[WF]G.G.{6,8}")
# Light chains have longer first loops and a shorter way between W41 and C104.
_ANY = re.compile(r".{19,24}C.{10,17}W.{50,62}C(.{3,35}?)[WF]G.G.{5,8}")
_K = 4
# Residues of a chain that a V gene may cover.
_READ = 112


def cdr3(chain: str, heavy: bool = True) -> str | None:
  """What stands between cysteine 104 and the J motif; None: this is no whole variable domain.

  `heavy`: of a heavy chain; otherwise of any.
  """
  found = (_HEAVY if heavy else _ANY).fullmatch(chain)
  return found.group(1) if found else None


def read_germlines(path: pathlib.Path, species: Sequence[str], chains: str = "H") -> dict[str, str]:
  """V alleles, name -> residues up to cysteine 104, of ANARCI's germlines.py; `chains` of "HKL"."""
  for node in ast.parse(path.read_text()).body:
    if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "all_germlines":
      genes = ast.literal_eval(node.value)["V"]
      some = [genes[chain].get(kind, {}) for chain in chains for kind in species]
      gapped = {name: text for x in some for name, text in x.items()}
      whole = {n: x[:104].replace("-", "") for n, x in gapped.items() if x[103] == "C"}
      return dict(sorted(whole.items()))
  raise ValueError(f"{path} assigns no all_germlines")


def edits(chains: Sequence[str], genes: Sequence[str]) -> np.ndarray:
  """Edits that make each gene the beginning of its chain: [P] for P pairs, the end of the chain free."""
  width = max(map(len, chains))
  text_PxW, gene_PxG = _letters(chains, width), _letters(genes, max(map(len, genes)))
  size_P = np.array([len(x) for x in chains])
  past_PxW = np.arange(width + 1) > size_P[:, None]
  columns = np.arange(width + 1)
  row_PxW = np.broadcast_to(columns, (len(chains), width + 1)).astype(np.int32)
  best_P = np.zeros(len(chains), np.int32)
  for i in range(gene_PxG.shape[1]):
    replaced = row_PxW[:, :-1] + (text_PxW != gene_PxG[:, i, None])
    new = row_PxW + 1
    new[:, 1:] = np.minimum(new[:, 1:], replaced)
    # A residue that the chain has and the gene has not costs 1: the least on the left, plus the way.
    row_PxW = np.minimum.accumulate(new - columns, axis=1) + columns
    ends = np.array([len(x) == i + 1 for x in genes])
    best_P[ends] = np.where(past_PxW[ends], width, row_PxW[ends]).min(axis=1)
  return best_P


def nearest(
  chains: Sequence[str], germlines: dict[str, str], tried: int = 8
) -> list[tuple[str, float]]:
  """The nearest V allele of every chain, and its identity: 1 - edits / residues of the allele.

  Only the `tried` alleles that share most pieces of four residues with a chain are aligned.
  """
  names = list(germlines)
  pieces = sorted({p for x in germlines.values() for p in _pieces(x)})
  at = {p: i for i, p in enumerate(pieces)}
  has_NxK = np.zeros((len(names), len(pieces)), np.float32)
  for row, name in enumerate(names):
    has_NxK[row, [at[p] for p in _pieces(germlines[name])]] = 1
  found: list[tuple[str, float]] = []
  for first in range(0, len(chains), 2000):
    some = [x[:_READ] for x in chains[first : first + 2000]]
    shared = np.zeros((len(some), len(pieces)), np.float32)
    for row, x in enumerate(some):
      shared[row, [at[p] for p in _pieces(x) if p in at]] = 1
    order = np.argsort(-(shared @ has_NxK.T), axis=1, kind="stable")[:, :tried]
    genes = [germlines[names[n]] for n in order.ravel()]
    cost = edits([x for x in some for _ in range(order.shape[1])], genes)
    identity = (1 - cost / [len(x) for x in genes]).reshape(order.shape)
    for row, best in enumerate(identity.argmax(axis=1)):
      found.append((names[order[row, best]], float(identity[row, best])))
  return found


def _pieces(text: str) -> set[str]:
  return {text[i : i + _K] for i in range(len(text) - _K + 1)}


def _letters(texts: Sequence[str], width: int) -> np.ndarray:
  """uint8 [P, width]; what is past the end is 0, and no residue."""
  return np.array([list(x.encode().ljust(width, b"\0")) for x in texts], np.uint8)
