"""Proteins from a frozen trunk, with and without the causal block: quality against NFE.

  python experiments/ssmd_protein/sample.py --out=points.jsonl --picture=nfe.png \
    --checkpoint=runs/ssmd_frozen_cpu --data.path=proteins.fasta

Both curves come from the same weights: masked diffusion by the trunk alone with numbers of steps,
and self-speculative sampling with the grid of (N, dtau) of Table 2 (arXiv:2510.03929). What a
sampler is worth is the likelihood of held-out proteins under it, log p(x given how it was drawn)
exact, in nats a residue. Of its own samples, `--length` residues between begin and end marks, the
any-order bound under the trunk and the entropy of residues are recorded. (The paper folds its
samples with ESMFold; a model as small as `:cpu` folds to nothing.) Recorded too is what targets
could reach at best with these drafts. Re-running the command measures what is missing. `tables.md`
beside the picture has the NFE at equal likelihood.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import sys

import jax
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from sbdjax.cli import flags
from sbdjax.cli.common import split_overrides
from sbdjax.data.config import DataConfig
from sbdjax.data.sources import load_corpus
from sbdjax.decode.any_order import mdm
from sbdjax.errors import UsageError
from sbdjax.evals import equal_quality, likelihoods, record, samples
from sbdjax.evals.entropy import unigram_entropy
from sbdjax.interop.pretrained import load_pretrained
from sbdjax.likelihood import elbo
from sbdjax.settings import to_dataclass
from sbdjax.sigma_lm import SigmaLM

HELD_OUT = "held-out proteins"
STEPS = "4,6,8,12,16,24,32,48,64,96,126"


def marks(length: int) -> np.ndarray:
  """bool [length + 2]: the begin and the end, which are given."""
  return np.isin(np.arange(length + 2), (0, length + 1))


class Quality:
  """The any-order bound of rows under a trunk, and the entropy of their residues."""

  def __init__(self, model, length: int, batch_size: int, masks: int):
    predict, mask_id = mdm.predictor(model.lm), model.lm.config.mask_id
    given_L = marks(length)
    self._params, self._batch_size, self._masks = model.params, batch_size, masks
    self._bound = jax.jit(
      lambda params, rows, keys: elbo.any_order(
        predict, mask_id, params, rows, keys, masks, given_L=given_L
      )
    )

  def __call__(self, rows: list[list[int]]) -> dict:
    rows = np.asarray(rows, np.int32)
    keys, residues = jax.random.split(jax.random.key(0), len(rows)), rows.shape[1] - 2
    found = []
    for first in range(0, len(rows), self._batch_size):
      at = np.minimum(np.arange(first, first + self._batch_size), len(rows) - 1)
      of_batch = self._bound(self._params, rows[at], keys[at])
      found.append(np.asarray(of_batch)[: len(rows) - first])
    nats = -np.concatenate(found).mean(axis=1) / residues
    return {
      "bound": float(nats.mean()),
      "bound_stderr": float(nats.std(ddof=1) / len(nats) ** 0.5),
      "masks_per_sample": self._masks,
      "entropy": unigram_entropy(rows[:, 1:-1].tolist()),
    }


def held_out(data: DataConfig, tokenizer, length: int, count: int) -> list[list[int]]:
  """A random part of each test protein that is long enough, between marks, as in training."""
  corpus, rng = load_corpus(data, "test", tokenizer), np.random.default_rng(0)
  rows = []
  for start, size in zip(corpus.starts, corpus.lengths, strict=True):
    if size >= length and len(rows) < count:
      start += rng.integers(size - length + 1)
      residues = corpus.tokens[start : start + length].tolist()
      rows.append([tokenizer.bos_id, *residues, tokenizer.eos_id])
  return rows


def _name(record: dict) -> str | None:
  """Of its curve: masked diffusion has one for each schedule."""
  decoders = [record["settings"].get("decoder", {}).get("name")]
  decoders += [x["decoder"] for x in record.get("likelihood", [])]
  label, noise = record["settings"]["label"], record["settings"]["noise"]
  if "mdm" in decoders:
    return f"{label}, {noise} steps"
  return label if "ssmd" in decoders else None


def likelihood_curves(records: list[dict]) -> dict[str, list[tuple[float, float]]]:
  """(mean NFE, nats a residue) of held-out proteins under each sampler."""
  return {
    _name(record): sorted((x["mean_nfe"], x["nats_per_residue"]) for x in record["likelihood"])
    for record in records
    if "likelihood" in record
  }


def table(records: list[dict]) -> str:
  """NFE at equal likelihood, masked diffusion of each schedule as the baseline."""
  curves = likelihood_curves(records)
  negated = {name: [(nfe, -nats) for nfe, nats in curve] for name, curve in curves.items()}
  found = equal_quality.compare(negated, [name for name in curves if "MDM" in name])
  lines = equal_quality.markdown(found, "nats a residue", "NFE")
  return "\n".join(["# NFE at equal likelihood of held-out proteins", "", *lines, ""])


def draw(records: list[dict], path: str):
  """Likelihood of held-out proteins by sampler; bound and entropy of samples; all against NFE."""
  figure, axes = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
  points = [r for r in records if "nfe" in r]
  colours = ("#0072B2", "#D55E00", "#56B4E9")
  colour = dict(zip(dict.fromkeys(filter(None, map(_name, records))), colours, strict=False))
  for name, curve in likelihood_curves(records).items():
    axes[0].plot(*zip(*curve, strict=True), "o-", color=colour[name], label=name)
  for label in dict.fromkeys(r["settings"]["label"] for r in points):
    group = sorted((r for r in points if r["settings"]["label"] == label), key=lambda r: r["nfe"])
    for axis, field in zip(axes[1:], ("bound", "entropy"), strict=True):
      axis.plot(
        [r["nfe"] for r in group], [r[field] for r in group], "o-", color=colour[_name(group[0])]
      )
  names = (
    "held-out proteins under the sampler,\nnats a residue",
    "samples' bound under the trunk,\nnats a residue",
    "entropy of samples' residues, nats",
  )
  for axis, name in zip(axes, names, strict=True):
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    axis.set_xlabel("NFE (full forwards)")
    axis.set_ylabel(name)
    axis.grid(alpha=0.3)
  held_out = next(r for r in records if r["settings"]["label"] == HELD_OUT)
  for axis, field in zip(axes[1:], ("bound", "entropy"), strict=True):
    axis.axhline(held_out[field], color="grey", linestyle=":", label="held-out proteins")
    axis.legend(fontsize=8)
  axes[0].legend(fontsize=8)
  figure.savefig(path, dpi=110)


def main(argv: list[str] | None = None) -> int:
  rest, texts = split_overrides(sys.argv[1:] if argv is None else argv, "data")
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  add = parser.add_argument
  add("--checkpoint", required=True, help="a self-speculative model")
  add("--out", required=True, help="the JSON lines")
  add("--picture", required=True, help="the PNG")
  add("--samples", type=int, default=128)
  add("--length", type=int, default=126, help="residues")
  add("--batch_size", type=int, default=32)
  add("--masks", type=int, default=16, help="numbers of masks a sample, of the bound")
  add("--rules", default=samples.RULES, help="N:DTAU of the self-speculative sampler")
  add("--texts", type=int, default=64, help="held-out proteins whose likelihood is measured")
  add("--steps", default=STEPS, help="of the masked-diffusion sampler")
  add("--noise", default="linear", help="schedule of the masked-diffusion sampler")
  add("--no_samples", action="store_true", help="likelihoods of held-out proteins alone")
  add("--seed", type=int, default=0)
  args = parser.parse_args(rest)

  model = load_pretrained(args.checkpoint)
  if not isinstance(model.lm, SigmaLM):
    raise UsageError(f"{args.checkpoint} has no causal blocks: give a self-speculative model")
  fields = {"source": "fasta", "tokenizer": "esm", "packing": "crop"}
  data = to_dataclass(DataConfig, fields | flags.parse_fields(DataConfig, texts, "data"), "data")
  tokenizer, mask_id = model.tokenizer, model.lm.config.mask_id
  quality = Quality(model, args.length, args.batch_size, args.masks)
  fields = ("samples", "length", "batch_size", "masks", "noise", "seed")
  shared = {name: getattr(args, name) for name in fields}
  shared |= {"corpus": pathlib.Path(data.path).name}
  shared |= {"weights_crc32": record.fingerprint(model.params)}
  recorder = samples.Recorder(args.out, shared)

  real = held_out(data, tokenizer, args.length, args.samples)
  recorder.once({"label": HELD_OUT, "rows": len(real)}, lambda: quality(real))
  template = [tokenizer.bos_id, *[mask_id] * args.length, tokenizer.eos_id]
  how = dict(batch_size=args.batch_size, seed=args.seed, quality=quality)
  steps, rules = flags.parse_ints(args.steps, "--steps"), samples.parse_rules(args.rules)
  proteins = np.asarray(real[: args.texts], np.int32)
  keys, given_L = jax.random.split(jax.random.key(args.seed), len(proteins)), marks(args.length)

  def headroom():
    nats_D = likelihoods.by_masks(model, proteins, keys[0], given_L)
    attainable = likelihoods.attainable(nats_D)
    return {"draft": float(nats_D.mean()), "attainable": attainable, "by_masks": nats_D.tolist()}

  recorder.once({"label": "drafts by number of masks", "held_out": len(proteins)}, headroom)

  def likelihood(measured):
    return {"likelihood": [likelihoods.line_of(one, "nats_per_residue") for one in measured]}

  for label, configs, measured in (
    (
      "trunk alone (MDM)",
      samples.masked_diffusion(model, 0, steps, args.noise),
      likelihoods.in_steps(model, proteins, keys, steps, args.noise, 1, given_L),
    ),
    (
      "with the causal block (SSMD)",
      samples.self_speculative(0, rules),
      likelihoods.speculative(model, proteins, keys, rules, 1, given_L),
    ),
  ):
    settings = {"label": label, "held_out": len(proteins), "steps": args.steps, "rules": args.rules}
    recorder.once(settings, functools.partial(likelihood, measured))
    if not args.no_samples:
      recorder.sweep(label, model, configs, [template] * args.samples, **how)
  draw(recorder.lines.records, args.picture)
  pathlib.Path(args.picture).with_name("tables.md").write_text(table(recorder.lines.records))
  return 0


if __name__ == "__main__":
  sys.exit(main())
