"""Bits per character of the models as they are sampled, and the exact mean NFE: one line per setting.

  python experiments/ssmd_text8/likelihood.py --out=likelihood.jsonl --texts=64 --orders=1 \
    --length=256 --data.path=text8_6400k --data.split_sizes='(6000000,200000,200000)' \
    MDM=runs/text8_mdm SSMD=runs/text8_ssmd

A self-speculative model: log p(x | sigma) is exact (Proposition 3.1 and its extension to windows and
N loops), its mean over random orders sigma a bound (equation 12). A masked-diffusion model, of each
number of steps: log p(x | plan) is exact, where a plan says in which step a token is revealed, and
its mean over the sampler's own plans is the same kind of bound. Beside both stands the any-order
bound, that of masked diffusion with one token per forward. Every line names its estimator, texts,
samples a text, and standard error. With `--data.packing=crop` a text is a part of one document, a protein
say, between marks that are given, and lines tell which parts are of one document. With `--together` both
samplers of a self-speculative model, it and its trunk alone, are measured in the same orders and from the same passes.
"""

from __future__ import annotations

import argparse
import itertools
import math
import pathlib
import sys

import jax

from sbdjax.cli import flags
from sbdjax.cli.common import split_overrides
from sbdjax.data.config import DataConfig
from sbdjax.decode.any_order.windows import Cosine
from sbdjax.evals import held_out, likelihoods, record, samples
from sbdjax.interop.pretrained import load_pretrained
from sbdjax.settings import to_dataclass
from sbdjax.sigma_lm import SigmaLM

# Beside the paper's, one window for the whole text, without and with a limit of loops.
WHOLE = ((1, Cosine(1.0)), (math.inf, Cosine(1.0)))
NOISES = ("cosine", "linear")
STEPS = "6,8,11,16,24,32,48,64,96,128,192,256"


def main(argv: list[str] | None = None) -> int:
  rest, fields = split_overrides(sys.argv[1:] if argv is None else argv, "data")
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  add = parser.add_argument
  add("runs", nargs="+", help="NAME=CHECKPOINT")
  add("--out", required=True, help="the JSON lines")
  add("--texts", type=int, default=64, help="first rows of the held-out split")
  add("--length", type=int, default=256, help="tokens of a text, marks not counted")
  add("--split", default="test", help="the held-out texts")
  add("--unit", default="bits_per_character", help="or nats_per_token")
  add("--orders", type=int, default=1, help="orders a text, of the exact likelihood")
  add(
    "--rules",
    default=samples.RULES,
    help="N:DTAU or N:linear:SLOPE of the self-speculative sampler",
  )
  add("--steps", default=STEPS, help="of the masked-diffusion sampler, up to the length")
  add("--noise", default="cosine", help="schedule of the masked-diffusion sampler")
  add("--plans", type=int, default=1, help="plans a text, of masked diffusion in steps")
  which = parser.add_mutually_exclusive_group()
  which.add_argument(
    "--trunk_alone", action="store_true", help="masked diffusion by self-speculative models' trunks"
  )
  which.add_argument(
    "--together",
    action="store_true",
    help="a self-speculative model, and its trunk alone in steps of both schedules",
  )
  add("--samples", type=int, default=16, help="numbers of masks a text, of the any-order bound")
  add("--seed", type=int, default=0)
  args = parser.parse_args(rest)
  if args.together and len(args.runs) > 1:
    parser.error("--together names its lines by what decodes: give one model")

  default = {"source": "text8", "tokenizer": "text8", "add_bos": False, "packing": "concat"}
  data = to_dataclass(DataConfig, default | flags.parse_fields(DataConfig, fields, "data"), "data")
  lines = record.JsonLines(pathlib.Path(args.out))
  all_keys = jax.random.split(jax.random.key(args.seed), args.texts)
  rules = [*samples.parse_rules(args.rules), *WHOLE]
  steps = [t for t in flags.parse_ints(args.steps, "--steps") if t <= args.length]
  for name, _, path in (run.partition("=") for run in args.runs):
    model = load_pretrained(path)
    texts = held_out.read(data, args.split, model.tokenizer, args.length, args.texts)
    rows, given, keys = texts.rows_BxL, texts.given_L, all_keys[: len(texts.rows_BxL)]
    about = {
      "label": name,
      "weights_crc32": record.fingerprint(model.params),
      "corpus": f"{pathlib.Path(data.path).name or 'text8'}, {args.split} split",
      "seed": args.seed,
      **record.provenance(),
    }

    measured = [likelihoods.any_order(model, rows, keys, args.samples, given)]
    if args.together:
      more = likelihoods.together(
        model, rows, keys, rules, steps, NOISES, args.orders, args.plans, given
      )
    elif isinstance(model.lm, SigmaLM) and not args.trunk_alone:
      more = likelihoods.speculative(model, rows, keys, rules, args.orders, given)
    else:
      more = likelihoods.in_steps(model, rows, keys, steps, args.noise, args.plans, given)
    for one in itertools.chain(measured, more):
      line = likelihoods.line_of(one, args.unit) | about
      line["each"] |= texts.about()
      if args.together and one.settings["decoder"] == "mdm":
        line["label"] = f"trunk alone, {one.settings['noise']} steps"
      lines.append(line)
      print(name, one.settings, one.estimate, flush=True)
  return 0


if __name__ == "__main__":
  sys.exit(main())
