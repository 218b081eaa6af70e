"""Chains drawn by the trunk alone and with the causal block: are they whole domains, how near is a germline gene.

  python experiments/ssmd_antibody/sample.py --checkpoint=runs/antibody_ssmd --germlines=germlines.py \
    --fasta=therapeutic.fasta --length=119 --samples=64 --out=points.jsonl

Of each sample of `--length` residues: whether it has the conserved residues of a variable domain in their places
and the J motif (`domains.cdr3`), the identity of its nearest germline V allele of any chain, heavy or light, which
gene that is, its forwards. Held-out chains of that length are measured too. Re-running the command measures what is missing.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import sys

import domains
from likelihood import NOISES, read_chains

from sbdjax.cli import flags
from sbdjax.decode.generate import Decoder
from sbdjax.evals import record, samples
from sbdjax.interop.pretrained import load_pretrained

RULES = "2:0.083,4:0.167,16:0.5,4:linear:0.8"
STEPS = "8,16,32"


def quality(chains: list[str], germlines: dict[str, str]) -> dict:
  """What is said of a set of chains: shares and means, and each chain's own."""
  loops = [domains.cdr3(x, heavy=False) for x in chains]
  genes = domains.nearest(chains, germlines)
  return {
    "valid": sum(x is not None for x in loops) / len(chains),
    "identity": sum(x for _, x in genes) / len(chains),
    "heavy": sum(name.startswith("IGHV") for name, _ in genes) / len(chains),
    "genes": len({name.split("*")[0] for name, _ in genes}),
    "loops": len({x for x in loops if x is not None}),
    "examples": chains[:2],
    "each": {
      "valid": [int(x is not None) for x in loops],
      "identity": [round(x, 4) for _, x in genes],
      "gene": [name.split("*")[0] for name, _ in genes],
    },
  }


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  add = parser.add_argument
  add("--checkpoint", required=True, help="a self-speculative model")
  add("--germlines", required=True, type=pathlib.Path, help="germlines.py of ANARCI")
  add("--fasta", required=True, type=pathlib.Path, nargs="+", help="held-out chains")
  add("--out", required=True, help="the JSON lines")
  add("--length", type=int, default=119, help="residues of a sample")
  add("--samples", type=int, default=64)
  add("--batch_size", type=int, default=64)
  add("--rules", default=RULES, help="N:DTAU or N:linear:SLOPE of the self-speculative sampler")
  add("--steps", default=STEPS, help="of the masked-diffusion sampler, with either schedule")
  add("--seed", type=int, default=0)
  args = parser.parse_args(argv)

  germlines = domains.read_germlines(args.germlines, ("human", "mouse"), "HKL")
  model = load_pretrained(args.checkpoint)
  lm, tokenizer, length = model.lm, model.tokenizer, args.length
  shared = {"length": length, "seed": args.seed}
  recorder = samples.Recorder(args.out, shared)
  for fasta in args.fasta:
    real = [chain for _, chain in read_chains(fasta, length, 10_000)]
    about = {"label": "held-out chains", "fasta": fasta.name, "rows": len(real)}
    recorder.once(about, functools.partial(quality, real, germlines))

  prompt = [tokenizer.bos_id, *[lm.config.mask_id] * length, tokenizer.eos_id]

  def of_rows(rows: list[list[int]]) -> dict:
    return quality(["".join(tokenizer.decode(row[1:-1]).split()) for row in rows], germlines)

  def measured(decoding) -> dict:
    decoder = Decoder(lm, decoding.limits(()))
    prompts = [prompt] * args.samples
    how = (args.batch_size, args.seed, of_rows)
    found = samples.measure(model, decoder, decoding, prompts, *how, warm_up=False)
    # Without a run to warm up, and on a machine with other work, they say nothing.
    return {k: x for k, x in found.items() if "seconds" not in k}

  steps = flags.parse_ints(args.steps, "--steps")
  alone = [x for noise in NOISES for x in samples.masked_diffusion(model, 0, steps, noise)]
  with_block = samples.self_speculative(0, samples.parse_rules(args.rules))
  for label, settings in (("SSMD", with_block), ("MDM", alone)):
    for decoding in settings:
      about = {
        "label": label,
        "decoder": decoding.flat(),
        "samples": args.samples,
        "blocks": [lm.config.num_layers, lm.head.num_layers],
        "weights_crc32": record.fingerprint(model.params),
      }
      recorder.once(about, functools.partial(measured, decoding))
  return 0


if __name__ == "__main__":
  sys.exit(main())
