"""Cuts or continues the documents of a token file to whole blocks.

  python experiments/freedave_stories260k/align.py --tokens=runs/self.npz --out=runs/blocks.npz

A document that ends in its end token is continued with it to a multiple of `--multiple` tokens, so
that a block-diffusion model learns what to put after the end of a text inside a block; any other
loses its last tokens. Documents that keep nothing but their prompt are left out.
"""

import argparse
import sys

import numpy as np

from sbdjax.data import token_file


def align(document: list[int], multiple: int, end_id: int) -> list[int]:
  """`document` with a length that is a multiple of `multiple`."""
  excess = len(document) % multiple
  if not excess:
    return document
  if document[-1] != end_id:
    return document[:-excess]
  return document + [end_id] * (multiple - excess)


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--tokens", required=True, help="tokens.npz to read")
  parser.add_argument("--out", required=True, help="tokens.npz to write")
  parser.add_argument("--multiple", type=int, default=16, help="of every block size to be trained")
  args = parser.parse_args(argv)

  corpus, meta = token_file.read_tokens(args.tokens)
  given = np.zeros(len(corpus.lengths), int)
  given = given if corpus.prompt_lengths is None else corpus.prompt_lengths
  documents, prompts = [], []
  for start, length, prompt in zip(corpus.starts, corpus.lengths, given, strict=True):
    document = corpus.tokens[start : start + length].astype(int).tolist()
    aligned = align(document, args.multiple, meta["eos_id"])
    if len(aligned) > prompt:
      documents.append(aligned)
      prompts.append(int(prompt))
  meta = dict(meta, multiple=args.multiple)
  token_file.write_tokens(args.out, documents, meta, prompt_lengths=prompts)
  print(f"wrote {args.out}: {len(documents)} stories, {sum(map(len, documents))} tokens")
  return 0


if __name__ == "__main__":
  sys.exit(main())
