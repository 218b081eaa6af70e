"""Samples of masked-diffusion and self-speculative models, measured: one JSON line per setting.

  python experiments/ssmd_text8/sample.py --out=points.jsonl --samples=1024 --length=256 \
    --data.path=text8_6400k --data.split_sizes='(6000000,200000,200000)' \
    MDM=runs/text8_mdm SSMD=runs/text8_ssmd

`NAME=CHECKPOINT`s are decoded by what they are: a self-speculative model with the grid of (N, dtau)
of Table 2 (arXiv:2510.03929), a masked-diffusion model with numbers of steps up to the length. Each
line has the mean NFE in full forwards, spelling accuracy (words of the training split), unigram
entropy, repetition and distinct-2 (`evals.diversity`), acceptance rate (drafts that were looked at and kept), seconds a sample (compilation apart,
rows of a batch wait for the slowest) and, with --judge, the NLL under that autoregressive model; a second
judge may have another vocabulary: both read the text that the samples decode to, and cut it into tokens of their own.
`--data.*` say which text the models were trained on; held-out rows of it are measured too. Every line has
the sums of each sample. Re-running the command measures what is missing.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Mapping, Set
from typing import Any

import numpy as np

from sbdjax.cli import flags
from sbdjax.cli.common import split_overrides
from sbdjax.data.config import DataConfig
from sbdjax.data.sources import load_corpus
from sbdjax.data.tokenizers import Tokenizer, TokenTexts
from sbdjax.evals import diversity, held_out, samples
from sbdjax.evals.entropy import unigram_entropies
from sbdjax.evals.generative import generative_nll
from sbdjax.evals.judge import Judge
from sbdjax.evals.spelling import spelling, vocabulary
from sbdjax.interop.pretrained import load_pretrained
from sbdjax.settings import to_dataclass
from sbdjax.sigma_lm import SigmaLM

JUDGES = ("judge", "second_judge")
STEPS = "6,8,11,16,24,32,48,64,96,128,192,256"


class Quality:
  """What is said of a set of texts, whoever wrote them."""

  def __init__(
    self, words: Set[str], tokenizer: TokenTexts, judges: Mapping[str, tuple[Tokenizer, Judge]]
  ):
    """`judges`: prefix of their fields -> their tokenizer, and they."""
    self.words, self.tokenizer, self.judges = words, tokenizer, judges

  def __call__(self, rows: list[list[int]]) -> dict[str, Any]:
    texts = [self.tokenizer.decode(row) for row in rows]
    spelt = spelling(texts, self.words)
    spelt_each = [spelling([text], self.words) for text in texts]
    entropies, repeats = unigram_entropies(rows), [diversity.repeats(row) for row in rows]
    out = {"spelling": spelt.accuracy, "words": spelt.words, "entropy": float(np.mean(entropies))}
    out |= {"repetition": diversity.repetition(rows), "distinct_2": diversity.distinct(rows, 2)}
    each = {"correct": [x.correct for x in spelt_each], "words": [x.words for x in spelt_each]}
    each |= {"entropy": np.round(entropies, 4).tolist()}
    each |= {"repeated": [x.repeated for x in repeats], "ngrams": [x.ngrams for x in repeats]}
    for name, (tokenizer, judge) in self.judges.items():
      scored = generative_nll(judge, tokenizer, texts)
      out |= {f"{name}_nll": scored.nll, f"{name}_bits_per_character": scored.bits_per_character}
      each |= {f"{name}_nll": scored.each.nll.round(3).tolist()}
      each |= {f"{name}_tokens": scored.each.tokens.tolist()}
    return out | {"examples": texts[:2], "each": each}


def main(argv: list[str] | None = None) -> int:
  rest, texts = split_overrides(sys.argv[1:] if argv is None else argv, "data")
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  add = parser.add_argument
  add("runs", nargs="+", help="NAME=CHECKPOINT")
  add("--out", required=True, help="the JSON lines")
  add("--samples", type=int, default=1024)
  add("--length", type=int, default=256, help="tokens of a sample: what the models trained on")
  add("--split", default="test", help="the held-out texts")
  add("--batch_size", type=int, default=64)
  add("--seed", type=int, default=0)
  add("--rules", default=samples.RULES, help="N:DTAU of the self-speculative sampler")
  add("--steps", default=STEPS, help="of the masked-diffusion sampler, up to the length")
  add("--noise", default="cosine", help="schedule of the masked-diffusion sampler")
  add("--judge", help="checkpoint of an autoregressive model")
  add("--judge_note", help="what the judge is: 'GPT-2', or 'trained here: ...'")
  add("--second_judge", help="checkpoint of another one")
  add("--second_judge_note", help="what it is")
  args = parser.parse_args(rest)
  for name in JUDGES:
    if bool(getattr(args, name)) != bool(getattr(args, f"{name}_note")):
      parser.error(f"give --{name} and --{name}_note together: records must say what the judge is")

  fields = {"source": "text8", "tokenizer": "text8", "add_bos": False, "packing": "concat"}
  data = to_dataclass(DataConfig, fields | flags.parse_fields(DataConfig, texts, "data"), "data")
  models = {name: load_pretrained(path) for name, _, path in (r.partition("=") for r in args.runs)}
  tokenizer = next(iter(models.values())).tokenizer
  train = load_corpus(data, "train", tokenizer)
  judges = {}
  for name in JUDGES:
    if path := getattr(args, name):
      opened = load_pretrained(path)
      judges[name] = opened.tokenizer, Judge(opened.lm, opened.params)
  quality = Quality(vocabulary(tokenizer.decode(train.tokens)), tokenizer, judges)

  unit = "characters" if data.tokenizer == "text8" else "tokens"
  shared = {
    "samples": args.samples,
    "length": args.length,
    "batch_size": args.batch_size,
    "seed": args.seed,
    "judge": args.judge_note,
    **({"second_judge": args.second_judge_note} if args.second_judge else {}),
    "corpus": f"{pathlib.Path(data.path).name or 'text8'}, {len(train.tokens):,} {unit}",
  }
  recorder = samples.Recorder(args.out, shared)
  rows = held_out.read(data, args.split, tokenizer, args.length, args.samples).rows_BxL
  recorder.once({"label": "held-out text", "rows": len(rows)}, lambda: quality(rows.tolist()))
  rules = samples.parse_rules(args.rules)
  steps = [t for t in flags.parse_ints(args.steps, "--steps") if t <= args.length]
  for name, model in models.items():
    if isinstance(model.lm, SigmaLM):
      configs = samples.self_speculative(args.length, rules)
    else:
      configs = samples.masked_diffusion(model, args.length, steps, args.noise)
    how = dict(batch_size=args.batch_size, seed=args.seed, quality=quality)
    recorder.sweep(name, model, configs, [[]] * args.samples, **how)
  return 0


if __name__ == "__main__":
  sys.exit(main())
