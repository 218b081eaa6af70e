"""Bits per character of the models as they are sampled, and the exact mean NFE: one line a setting.

  python experiments/ssmd_text8/likelihood.py --out=likelihood.jsonl --texts=64 --orders=1 \
    --length=256 --data.path=text8_6400k --data.split_sizes='(6000000,200000,200000)' \
    MDM=runs/text8_mdm SSMD=runs/text8_ssmd

A self-speculative model: log p(x | sigma) is exact (Proposition 3.1 and its extension to windows and
N loops), its mean over random orders sigma a bound (equation 12). A masked-diffusion model, of each
number of steps: log p(x | plan) is exact, where a plan says in which step a token is revealed, and
its mean over the sampler's own plans is the same kind of bound. Beside both stands the any-order
bound, that of masked diffusion with one token a forward. Every line names its estimator, texts,
samples a text, and standard error.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import sys

import jax
import numpy as np

from sbdjax.cli import flags, record
from sbdjax.cli.common import split_overrides, to_dataclass
from sbdjax.cli.samples import TABLE_2
from sbdjax.corruption import MASK_SCHEDULES
from sbdjax.data.config import DataConfig
from sbdjax.data.sources import load_corpus
from sbdjax.decode import mdm, windows
from sbdjax.interop.pretrained import load_pretrained
from sbdjax.likelihood import elbo, ssmd
from sbdjax.sigma_lm import SigmaLM

RULES = (*TABLE_2, (1, 1.0), (math.inf, 1.0))
STEPS = "6,8,11,16,24,32,48,64,96,128,192,256"


def any_order(model, rows, keys, samples: int) -> elbo.Estimate:
  predict = mdm.of_sigma(model.lm) if isinstance(model.lm, SigmaLM) else mdm.of_lm(model.lm)
  run = jax.jit(
    lambda params, rows, keys: elbo.any_order(
      predict, model.lm.config.mask_id, params, rows, keys, samples
    )
  )
  return elbo.summarise("any-order bound", run(model.params, rows, keys), rows.shape[1])


def in_steps(model, rows, keys, steps: list[int], noise: str, plans: int):
  """(steps, estimate, mean NFE) of the ancestral sampler with each number of steps."""
  predict, mask_id = mdm.of_lm(model.lm), model.lm.config.mask_id

  @jax.jit
  def run(params, rows, keys, num_steps):
    plan = mdm.ancestral(num_steps, MASK_SCHEDULES[noise]).plan
    return elbo.over_plans(predict, mask_id, params, rows, keys, plan, num_plans=plans)

  for num_steps in steps:
    found = jax.device_get(run(model.params, rows, keys, num_steps))
    name = "mean over random plans of exact log p(x given plan)"
    estimate = elbo.summarise(name, found.log_prob, rows.shape[1])
    yield num_steps, estimate, float(np.mean(found.forwards))


def speculative(model, rows, keys, orders: int):
  """(N, dtau, estimate, mean NFE) of every rule."""
  length = rows.shape[1]
  rules = [(windows.cosine(dtau)(length), n) for n, dtau in RULES]
  run = jax.jit(
    lambda params, rows, keys: elbo.over_orders(
      model.lm, params, rows, keys, rules, num_orders=orders
    )
  )
  found = jax.device_get(run(model.params, rows, keys))
  blocks = model.lm.config.num_layers, model.lm.head.num_layers
  for i, (n, dtau) in enumerate(RULES):
    name = "mean over random orders of exact log p(x given order)"
    estimate = elbo.summarise(name, found.log_prob[..., i], length)
    yield n, dtau, estimate, float(np.mean(ssmd.mean_nfe(found.mean_counts[..., i, :], *blocks)))


def line_of(estimate: elbo.Estimate) -> dict:
  error = estimate.stderr / math.log(2)
  return {
    "estimator": estimate.estimator,
    "bits_per_character": estimate.bits,
    "stderr": None if math.isnan(error) else error,
    "texts": estimate.texts,
    "samples_per_text": estimate.samples,
    "length": estimate.tokens,
  }


def main(argv: list[str] | None = None) -> int:
  rest, texts = split_overrides(sys.argv[1:] if argv is None else argv, "data")
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  add = parser.add_argument
  add("runs", nargs="+", help="NAME=CHECKPOINT")
  add("--out", required=True, help="the JSON lines")
  add("--texts", type=int, default=64, help="first rows of the test split")
  add("--length", type=int, default=256, help="characters of a text: what the models trained on")
  add("--orders", type=int, default=1, help="orders a text, of the exact likelihood")
  add("--steps", default=STEPS, help="of the masked-diffusion sampler, up to the length")
  add("--noise", default="cosine", help="schedule of the masked-diffusion sampler")
  add("--plans", type=int, default=1, help="plans a text, of masked diffusion in steps")
  add("--samples", type=int, default=16, help="numbers of masks a text, of the any-order bound")
  add("--seed", type=int, default=0)
  args = parser.parse_args(rest)

  fields = {"source": "text8", "tokenizer": "text8", "add_bos": False, "packing": "concat"}
  data = to_dataclass(DataConfig, fields | flags.parse_fields(DataConfig, texts, "data"), "data")
  lines = record.JsonLines(pathlib.Path(args.out))
  keys = jax.random.split(jax.random.key(args.seed), args.texts)
  steps = [t for t in flags.parse_ints(args.steps, "--steps") if t <= args.length]
  for name, _, path in (run.partition("=") for run in args.runs):
    model = load_pretrained(path)
    corpus = load_corpus(data, "test", model.tokenizer)
    rows = np.asarray(corpus.tokens[: args.texts * args.length], np.int32)
    rows = rows.reshape(args.texts, args.length)
    about = {
      "label": name,
      "weights_crc32": record.fingerprint(model.params),
      "corpus": f"{pathlib.Path(data.path).name or 'text8'}, test split",
      "seed": args.seed,
      **record.provenance(),
    }

    def write(estimate, about=about, **settings):
      lines.append(settings | line_of(estimate) | about)
      print(about["label"], settings, estimate, flush=True)

    write(any_order(model, rows, keys, args.samples), decoder="mdm, one token a forward")
    if isinstance(model.lm, SigmaLM):
      for n, dtau, estimate, nfe in speculative(model, rows, keys, args.orders):
        n_inner = 0 if n == math.inf else n
        write(estimate, decoder="ssmd", n_inner=n_inner, dtau=dtau, mean_nfe=nfe)
    else:
      for num_steps, estimate, nfe in in_steps(model, rows, keys, steps, args.noise, args.plans):
        write(estimate, decoder="mdm", steps=num_steps, noise=args.noise, mean_nfe=nfe)
  return 0


if __name__ == "__main__":
  sys.exit(main())
