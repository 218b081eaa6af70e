"""A byte-level BPE as GPT-2's, smaller, trained on a file of documents; its files are GPT-2's two.

  python experiments/owt_wiki/bpe.py wiki_plain_40MB.txt.xz --split_sizes 0.97 0.015 0.015 --out=runs/owt_bpe

Only the documents that models train on are read. With the default size, <|endoftext|> included, and a mask a
vocabulary has 4,096 rows.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from tokenizers import ByteLevelBPETokenizer

from sbdjax.data.bpe_tokenizer import GPT2_END
from sbdjax.data.files import read_documents
from sbdjax.data.splits import split_range


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  add = parser.add_argument
  add("texts", type=pathlib.Path, help="documents with <|endoftext|> between them, also .xz")
  add("--tokens", type=int, default=4095, help="of the vocabulary, <|endoftext|> included")
  add(
    "--split_sizes", type=float, nargs=3, default=(0.97, 0.015, 0.015), help="as data.split_sizes"
  )
  add("--out", type=pathlib.Path, required=True, help="folder for vocab.json and merges.txt")
  args = parser.parse_args(argv)
  documents = [str(document.body) for document in read_documents(args.texts, GPT2_END)]
  first, last = split_range(len(documents), "train", args.split_sizes)
  tokenizer = ByteLevelBPETokenizer()
  tokenizer.train_from_iterator(
    documents[first:last],
    vocab_size=args.tokens,
    special_tokens=[GPT2_END],
    show_progress=False,
  )
  args.out.mkdir(parents=True, exist_ok=True)
  tokenizer.save_model(str(args.out))
  print(f"{tokenizer.get_vocab_size():,} tokens from {last - first:,} documents: {args.out}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
