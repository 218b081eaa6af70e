"""Next-token loss of several models on held-out documents of the self-told corpus, document by document.

  python experiments/sbd_stories260k/held_out.py --corpus=runs/self.npz --out=held_out.jsonl \
    "NTP alone=runs/third_ntp" SBD=runs/third

Documents of the test split, each by itself; the tokens of its opening, which were no targets, are not
counted. A line of the record is a model, with the sums of every document.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

from sbdjax.data.config import DataConfig
from sbdjax.data.corpus import Corpus
from sbdjax.data.sources import load_corpus
from sbdjax.evals import record
from sbdjax.evals.judge import Judge, Scores
from sbdjax.interop.pretrained import load_pretrained


def documents(corpus: Corpus) -> tuple[list[list[int]], list[list[int]]]:
  """(opening, the rest) of every document that has both."""
  openings, stories = [], []
  given = [0] * len(corpus.lengths) if corpus.prompt_lengths is None else corpus.prompt_lengths
  for start, length, opening in zip(corpus.starts, corpus.lengths, given, strict=True):
    tokens = corpus.tokens[start : start + length].astype(int).tolist()
    if 0 < opening < length:
      openings.append(tokens[:opening])
      stories.append(tokens[opening:])
  return openings, stories


def line_of(name: str, checkpoint: str, corpus: str, scores: Scores) -> dict[str, object]:
  """What is recorded of a model."""
  settings = dict(checkpoint=checkpoint, corpus=pathlib.Path(corpus).name, split="test")
  each = dict(nll=[round(x, 4) for x in scores.nll.tolist()], tokens=scores.tokens.tolist())
  return dict(model=name, settings=settings, nll=scores.nll_per_token, each=each)


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("models", nargs="+", help="NAME=CHECKPOINT")
  parser.add_argument("--corpus", required=True, help="tokens.npz of collect.py")
  parser.add_argument("--out", type=pathlib.Path, required=True, help="the JSON lines")
  args = parser.parse_args(argv)
  pairs = [model.partition("=")[::2] for model in args.models]
  opened = [load_pretrained(checkpoint) for _, checkpoint in pairs]
  data = DataConfig(source="tokens", path=args.corpus)
  texts = documents(load_corpus(data, "test", opened[0].need_tokenizer()))
  about = record.provenance()
  lines = [
    line_of(name, checkpoint, args.corpus, Judge(model.lm, model.params).score(*texts)) | about
    for (name, checkpoint), model in zip(pairs, opened, strict=True)
  ]
  args.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
  for line in lines:
    print(f"{line['model']}: {line['nll']:.4f} nats/token on {len(texts[0])} documents")
  return 0


if __name__ == "__main__":
  sys.exit(main())
