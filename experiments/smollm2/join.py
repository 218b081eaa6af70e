"""Several files of tokens as one: python experiments/smollm2/join.py A/tokens.npz B/tokens.npz --out=C/tokens.npz"""

from __future__ import annotations

import argparse
import pathlib
import sys

from sbdjax.data import token_file


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("files", type=pathlib.Path, nargs="+")
  parser.add_argument("--out", type=pathlib.Path, required=True)
  args = parser.parse_args(argv)
  documents, given = [], []
  for file in args.files:
    corpus, settings = token_file.read_tokens(file)[:2]
    places = zip(corpus.starts, corpus.lengths, strict=True)
    documents += [corpus.tokens[start : start + length].tolist() for start, length in places]
    given += [int(n) for n in corpus.prompt_lengths]
  args.out.parent.mkdir(parents=True, exist_ok=True)
  token_file.write_tokens(args.out, documents, settings, given)
  print(f"wrote {args.out}: {len(documents)} texts, {sum(map(len, documents)):,} tokens")
  return 0


if __name__ == "__main__":
  sys.exit(main())
