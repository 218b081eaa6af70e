"""Count n-grams that verified decoding drafts from: ngrams TOKENS.npz ... --out=FILE.safetensors

TOKENS.npz is what `collect` wrote: prompts, and what the model wrote after them. The table has, for each
of the most frequent runs of tokens, the token that the model wrote after it most often. Decode with

  --decoder.name=sbd_verified --decoder.drafting=none --decoder.lookup=ngrams --decoder.lookup_table=FILE

The text stays that of AR whatever the table holds; how fast it comes depends on how much the texts
have in common with those to come.
"""

from __future__ import annotations

from sbdjax.cli.common import Parser
from sbdjax.data import assets, ngrams, token_file
from sbdjax.errors import DataError, UsageError


def main(argv: list[str]) -> int:
  """Runs the verb; returns the exit code."""
  parser = Parser(prog="ngrams", description=__doc__)
  parser.add_argument("texts", nargs="+", metavar="TOKENS.npz", help="files that `collect` wrote")
  parser.add_argument("--out", required=True, help="the file to write")
  parser.add_argument("--longest", type=int, default=3, help="tokens of the longest runs")
  parser.add_argument("--entries", type=int, default=200_000, help="runs that are kept, at most")
  args = parser.parse_args(argv)
  if not 1 <= args.longest <= ngrams.MOST:
    raise UsageError(f"--longest={args.longest} must be in 1..{ngrams.MOST}")
  if args.entries < 1:
    raise UsageError(f"--entries={args.entries} must be at least 1")
  corpora, sizes = [], set()
  for path in args.texts:
    corpus, meta = token_file.read_tokens(assets.resolve(path))
    if "vocab_size" not in meta:
      raise DataError(f"{path} does not say its vocabulary: name a file that `collect` wrote")
    corpora.append(corpus)
    sizes.add(int(meta["vocab_size"]))
  if len(sizes) > 1:
    shown = " and ".join(map(str, sorted(sizes)))
    raise DataError(f"the files are of models with different vocabularies: {shown} tokens")
  table = ngrams.count(corpora, sizes.pop(), args.longest, args.entries)
  ngrams.write(args.out, table)
  print(f"{args.out}: {len(table.key_N):,} n-grams of up to {args.longest} tokens")
  return 0
