"""Proteins from a frozen trunk, with and without the causal block: quality against NFE.

  python experiments/ssmd_protein/sample.py --out=points.jsonl --picture=nfe.png \
    --checkpoint=runs/ssmd_frozen_cpu --data.path=proteins.fasta

Both curves come from the same weights: masked diffusion by the trunk alone with numbers of steps,
and self-speculative sampling with the grid of (N, dtau) of Table 2 (arXiv:2510.03929). What a
sampler is worth is the likelihood of held-out proteins under it, log p(x given how it was drawn)
exact, in nats per residue. Of its own samples, `--length` residues between begin and end marks, the
any-order bound under the trunk and the entropy of residues are recorded. (The paper folds its
samples with ESMFold; a model as small as `:cpu` folds to nothing.) Recorded too is what targets
could reach at best with these drafts. Re-running the command measures what is missing. `tables.md`
beside the picture has the NFE at equal likelihood.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import sys

import jax
import numpy as np

from sbdjax import figures
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

HERE = pathlib.Path(__file__).resolve().parent
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
  """(mean NFE, nats per residue) of held-out proteins under each sampler."""
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
  lines = equal_quality.markdown(found, "nats per residue", "NFE")
  return "\n".join(["# NFE at equal likelihood of held-out proteins", "", *lines, ""])


def recorded() -> list[dict]:
  """This folder's records."""
  return [json.loads(line) for line in (HERE / "points.jsonl").read_text().splitlines()]


def recorded_table() -> str:
  """`table` of this folder's records."""
  return table(recorded())


def draw(path: pathlib.Path, records: list[dict] | None = None) -> None:
  """Likelihood of held-out proteins by sampler; bound and entropy of samples; all against NFE.

  Bars of the bound: two standard errors over samples. Those of the likelihoods would be of proteins,
  which are the same for all samplers, and as long as the curves are high.
  """
  records = recorded() if records is None else records
  points = [r for r in records if "nfe" in r]
  names = dict.fromkeys(filter(None, map(_name, records)))
  style = {name: dict(color=c, marker=m) for name, c, m in zip(
    names, figures.COLOURS, figures.MARKERS, strict=False)}  # fmt: skip
  with figures.drawing(path, figures.PAGE, 2.8) as figure:
    first, bounds, entropies = figure.subplots(1, 3)
    for name, curve in likelihood_curves(records).items():
      first.plot(*zip(*curve, strict=True), label=name, **style[name])
    for label in dict.fromkeys(r["settings"]["label"] for r in points):
      group = sorted((r for r in points if r["settings"]["label"] == label), key=lambda r: r["nfe"])
      nfe, how = [r["nfe"] for r in group], style[_name(group[0])]
      errors = [2 * r["bound_stderr"] for r in group]
      bounds.errorbar(nfe, [r["bound"] for r in group], yerr=errors, elinewidth=0.6, **how)
      entropies.plot(nfe, [r["entropy"] for r in group], **how)
    titles = ("held-out proteins", "samples under the trunk", "samples' residues")
    labels = ("nats per residue", "bound, nats per residue", "entropy, nats")
    for axes, title, label in zip((first, bounds, entropies), titles, labels, strict=True):
      figures.log_axis(axes, "x")
      axes.set(title=title, xlabel="NFE (full forwards)", ylabel=label)
    real = next(r for r in records if r["settings"]["label"] == HELD_OUT)
    for axes, field in ((bounds, "bound"), (entropies, "entropy")):
      axes.axhline(real[field], color=figures.GREY, linestyle=":", label=HELD_OUT)
    figures.legend_below(figure, 2)


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
  draw(pathlib.Path(args.picture), recorder.lines.records)
  pathlib.Path(args.picture).with_name("tables.md").write_text(table(recorder.lines.records))
  return 0


if __name__ == "__main__":
  sys.exit(main())
