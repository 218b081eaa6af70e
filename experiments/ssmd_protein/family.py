"""Domains of proteins in which a motif repeats, shuffled: a family to train a small model on.

  python experiments/ssmd_protein/family.py PROTEINS.fasta[.gz|.xz] ... --out=family.fasta

Of each protein the part from its first match to its last is kept. The default motif is PROSITE's
pattern PS00028 of C2H2 zinc fingers, which repeat every 28 residues. A model for two CPU cores
learns such a family; of proteins at large it learns how frequent residues are. Shuffled (with a
fixed seed) because splits are taken in the order of the file.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys

import numpy as np

from sbdjax.data.fasta import read_fasta

C2H2 = r"C.{2,4}C.{3}[LIVMFYWC].{8}H.{3,5}H"


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("files", nargs="+", help="FASTA files")
  parser.add_argument("--out", required=True, help="the FASTA file that is written")
  parser.add_argument("--motif", default=C2H2, help="a regular expression")
  parser.add_argument("--least", type=int, default=6, help="times the motif is found at least")
  args = parser.parse_args(argv)
  motif = re.compile(args.motif)
  proteins = [found.body for path in args.files for found in read_fasta(pathlib.Path(path))]
  chosen = []
  for text in proteins:
    matches = list(motif.finditer(text))
    if len(matches) >= args.least:
      chosen.append(text[matches[0].start() : matches[-1].end()])
  if not chosen:
    parser.error(f"none of {len(proteins)} proteins holds {args.motif} {args.least} times")
  order = np.random.default_rng(0).permutation(len(chosen))
  out = "".join(f">{number}\n{chosen[at]}\n" for number, at in enumerate(order))
  pathlib.Path(args.out).write_text(out)
  print(
    f"{len(chosen)} of {len(proteins)} proteins, {sum(map(len, chosen)):,} residues: {args.out}"
  )
  return 0


if __name__ == "__main__":
  sys.exit(main())
