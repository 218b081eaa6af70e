"""Accuracy against tokens per forward: every decoder and every reveal rule on the same exercises.

  python experiments/one_task/measure.py --runs=runs/one_task --out=runs/one_task/points.jsonl

The models are those of preset:stories_exercises in --runs, a folder for each variant, of those on trajectories
its round1; those that are not there are left out, and said. Exercises of the test split, greedy but
where a temperature stands, prompts one at a time unless --batch_size says otherwise; a prompt's own forward is counted apart.
One JSON line per point; re-running the command measures what is missing.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from sbdjax.bench.timing import Pass, TimedDecoder, summarise
from sbdjax.data.exercises import Exercise, exercises
from sbdjax.decode.decoding import from_flat
from sbdjax.evals import exact_match, record, reveal_order
from sbdjax.interop.pretrained import Pretrained, load_pretrained

MAX_TOKENS = 64
SHOWN = 10  # exercises whose texts are kept in a record

AR = {"name": "ar"}
GAMMAS = (0.0, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0, 1.5)
# Reveal rule -> its parameter and the values of it.
RULES: dict[str, tuple[str, Sequence[float]]] = {
  "eb_entropy": ("gamma", GAMMAS),
  "eb_confidence": ("gamma", GAMMAS[1:]),
  "eb_margin": ("gamma", (0.1, 0.35, 1.0)),
  "factor": ("f", (0.1, 0.25, 0.5, 1.0, 2.0)),
  "confidence_threshold": ("tau", (0.95, 0.9, 0.8, 0.7, 0.5)),
  "entropy_threshold": ("gamma", (0.1, 0.2, 0.4, 0.8, 1.2)),
  "top_k": ("tokens_per_step", (2, 4)),
}
RECYCLING = {"pool": "ngrams", "num_candidates": 4}
MULTIBLOCK = {"name": "jacobi_multiblock", "block_size": 8, "num_blocks": 2, "spawn_ratio": 0.85}


def _rules(block_size: int, names: Sequence[str] = tuple(RULES)) -> list[dict[str, Any]]:
  return [
    {"name": "sbd", "block_size": block_size, "rule": rule, RULES[rule][0]: value}
    for rule in names
    for value in RULES[rule][1]
  ]


def _verified() -> list[dict[str, Any]]:
  ways = [
    {"name": "sbd_verified", "drafting": way, "block_size": k}
    for way in ("alternating", "fused", "fan_out")
    for k in (4, 8)
  ]
  return [*ways, {**ways[-1], "candidates": True}, {**ways[-1], "lookup": "text"}]


def _jacobi() -> list[dict[str, Any]]:
  plain = {"name": "jacobi", "block_size": 8}
  window = {"name": "jacobi_window", "block_size": 8}
  return [plain, window, {**plain, **RECYCLING}, {**window, **RECYCLING}]


def _diffusion() -> list[dict[str, Any]]:
  exits = {"early_exit": True, "exit_at": "eos"}
  dynamic = [{"name": "dynamic", "threshold": t, **exits} for t in (0.95, 0.9, 0.8, 0.7, 0.5)]
  ahead = {"name": "freedave", "draft_steps": 4, "eager": True, **exits}
  over_dynamic = [{**ahead, "threshold": t} for t in (0.95, 0.9, 0.8, 0.7)]
  drawn = [
    {**way, "temperature": t} for t in (0.1, 1.0) for way in ({"name": "static", **exits}, ahead)
  ]
  freedave = [
    {"name": "freedave", "draft_steps": d, "eager": eager, **exits}
    for eager in (False, True)
    for d in (2, 4)
  ]
  return [{"name": "static", **exits}, *dynamic, *freedave, *over_dynamic, *drawn]


def _canvas() -> list[dict[str, Any]]:
  """Of a model that sees the whole text: any order over the canvas, and block by block."""
  exits = {"block_size": 8, "early_exit": True, "exit_at": "eos"}
  surest = [{"name": "mdm", "unmask": "top_k", "tokens_per_step": n} for n in (1, 2, 4, 8)]
  dynamic = [{"name": "dynamic", "threshold": t, **exits} for t in (0.95, 0.9, 0.8, 0.7)]
  ahead = {"name": "freedave", "draft_steps": 4, "eager": True, **exits}
  return [*surest, {"name": "static", **exits}, *dynamic, ahead, {**ahead, "threshold": 0.9}]


def _windows() -> list[dict[str, Any]]:
  cosine = {"name": "ssmd", "window": "cosine"}
  return [{**cosine, "dtau": dtau, "n_inner": n} for n in (1, 2) for dtau in (0.02, 0.05, 0.1, 0.2)]


class Model(NamedTuple):
  """A trained model and how it is decoded.

  Attributes:
    folder: below --runs.
    label: for tables and figures.
    decoders: flat settings.
  """

  folder: str
  label: str
  decoders: list[dict[str, Any]]


LOOKUP = {"name": "sbd_verified", "drafting": "none", "lookup": "text"}
MODELS = (
  Model("ntp", "NTP", [AR, LOOKUP, *_jacobi()]),
  Model("sbd", "SBD", [AR, *_rules(8), *_rules(4, ("eb_entropy",)), *_verified(), *_jacobi()[:2]]),
  Model("sbd_no_ntp", "SBD without the NTP term", [AR, *_rules(8, ("eb_entropy",))]),
  Model("jacobi/round1", "Jacobi Forcing", [AR, *_jacobi(), {**MULTIBLOCK, **RECYCLING}]),
  Model("jacobi_frozen/round1", "Jacobi Forcing, frozen teacher", [AR, *_jacobi()]),
  Model("cllm/round1", "CLLM*", [AR, *_jacobi()]),
  Model("sbd_adapter", "SBD adapter on NTP", [AR, *_rules(8, ("eb_entropy",)), *_verified()]),
  Model("block_diffusion", "block diffusion", _diffusion()),
  Model("mdm", "masked diffusion, 5,000 updates", _canvas()),
  Model("ssmd", "self-speculative", [*_windows(), *_canvas()[:4]]),
)

# Figure 5 of SBD: runs planned for other budgets than 1,000 updates.
BUDGETS = (250, 500)
OF_BUDGETS = tuple(
  Model(f"{name}_{updates}", f"{label}, {updates} updates", decoders)
  for updates in BUDGETS
  for name, label, decoders in (
    ("ntp", "NTP", [AR]),
    ("sbd", "SBD", [AR, *_rules(8, ("eb_entropy",))]),
  )
) + (Model("mdm_1000", "masked diffusion, 1,000 updates", _canvas()[4:5]),)
# Caches of Fast-dLLM, of a model that sees the whole text, beside the exact one of blocks (`none`: every
# forward pass runs the whole text).
WAYS = ({"name": "static"}, {"name": "dynamic", "threshold": 0.9})


def _cached(caches: Sequence[str], **settings: Any) -> list[dict[str, Any]]:
  exits = {"early_exit": True, "exit_at": "eos", **settings}
  return [{**way, "cache": cache, **exits} for way in WAYS for cache in caches]


OF_CACHES = (
  Model("block_diffusion", "block diffusion", _cached(("none", "block"))),
  Model(
    "mdm", "masked diffusion, 5,000 updates", _cached(("none", "prefix", "dual"), block_size=8)
  ),
)
# Further trainings, of other seeds, are measured by the main decoders of each model: those with these settings
# (None: that do not set it).
MAIN: tuple[dict[str, Any], ...] = (
  {"name": "ar"},
  {"name": "jacobi", "pool": None},
  {"name": "jacobi_window", "pool": "ngrams"},
  *({"rule": "eb_entropy", "block_size": 8, "gamma": gamma} for gamma in (0.0, 0.1, 0.2)),
  {"rule": "factor", "f": 0.5},
  {"rule": "confidence_threshold", "tau": 0.9},
  {"drafting": "alternating", "block_size": 4},
  {"candidates": True},
  {"name": "static", "temperature": None},
  {"name": "freedave", "draft_steps": 4, "eager": True, "threshold": None, "temperature": None},
  {"name": "ssmd", "dtau": 0.05, "n_inner": 1},
)


def has(flat: dict[str, Any], wanted: dict[str, Any]) -> bool:
  """Whether settings of a decoder are those wanted; None: not set."""
  return all(flat.get(name) == value for name, value in wanted.items())


OF_SEEDS = tuple(
  model._replace(decoders=[d for d in model.decoders if any(has(d, main) for main in MAIN)])
  for model in MODELS
)
SETS = {"methods": MODELS, "budgets": OF_BUDGETS, "caches": OF_CACHES, "seeds": OF_SEEDS}


def measurements(model: Pretrained, asked: Sequence[Exercise], passes: Sequence[Pass]) -> dict:
  """Accuracy and cost of one point; of the first few texts, the tokens and when they were revealed.

  `nfe` is without the prompts' own forwards, `tpf` is tokens / nfe, `tokens_per_second` the median
  over passes of the loops alone, `text_crc32` is equal for equal token ids, `errors` says what kind of tokens are wrong (`evals.reveal_order`),
  `each` holds a list a field over the exercises, in order; its `seconds` have the prompt's forward as well.
  """
  tokenizer, results = model.need_tokenizer(), passes[0].results
  correct = exact_match.score(tokenizer, asked, results)
  nfe = sum(r.nfe for r in results)
  speed = summarise([p.tokens_per_second for p in passes])
  return {
    "accuracy": exact_match.accuracy(correct)._asdict(),
    "by_kind": exact_match.by_kind(asked, correct),
    "prompts": len(asked),
    "tokens": passes[0].tokens,
    "nfe": nfe,
    "prefill_nfe": sum(r.prefill_nfe for r in results),
    "query_tokens": sum(r.query_tokens for r in results),
    "tpf": passes[0].tokens / nfe,
    "tokens_per_second": speed.median,
    "tokens_per_second_low": speed.low,
    "tokens_per_second_high": speed.high,
    "decode_seconds": summarise([p.decode_seconds for p in passes]).median,
    "text_crc32": zlib.crc32(json.dumps([r.text_tokens for r in results]).encode()),
    "ended": sum(r.finish == "eos" for r in results) / len(results),
    "errors": reveal_order.count(
      [r.text_tokens for r in results],
      exact_match.responses(tokenizer, asked),
      [r.reveal_step[: r.valid] for r in results],
    ),
    "each": {
      "correct": [int(right) for right in correct],
      "tokens": [r.valid for r in results],
      "nfe": [r.nfe for r in results],
      "seconds": [r.seconds for r in results],
    },
    "texts": [
      {
        "prompt": e.prompt,
        "answer": e.answer,
        "text": exact_match.text_of(tokenizer, r),
        "pieces": exact_match.pieces_of(tokenizer, r),
        "reveal_step": r.reveal_step[: r.valid],
        "nfe": r.nfe,
      }
      for e, r in list(zip(asked, results, strict=True))[:SHOWN]
    ],
  }


class Bench:
  """One model, opened, with what it has compiled."""

  def __init__(self, path: pathlib.Path):
    self.model = load_pretrained(str(path))
    self.seed = json.loads((path / "config.json").read_text())["train"]["seed"]  # of the training
    self.weights = record.fingerprint(self.model.params)
    eos_ids = self.model.generation.eos_ids
    self._decoder = TimedDecoder(
      self.model.lm, from_flat({"max_tokens": MAX_TOKENS}).limits(eos_ids)
    )

  def settings(
    self, model: Model, flat: dict[str, Any], args: argparse.Namespace
  ) -> dict[str, Any]:
    """Everything the outcome depends on besides program and machine."""
    decoding = from_flat({**flat, "max_tokens": MAX_TOKENS})
    decoding = decoding.for_model(self.model.lm, self.model.generation)
    label = model.label + (f", seed {self.seed}" if self.seed else "")
    of_model = {"checkpoint": model.folder, "label": label, "weights_crc32": self.weights}
    return {
      "model": of_model | {"seed": self.seed},
      "decoder": decoding.flat(),
      "exercises": {"split": "test", "count": args.count, "seed": args.seed},
      "batch_size": args.batch_size,
      "repeats": args.repeats,
    }

  def measure(
    self, flat: dict[str, Any], asked: Sequence[Exercise], args: argparse.Namespace
  ) -> dict[str, Any]:
    """Decodes `asked`; see `measurements`."""
    model = self.model
    decoding = from_flat({**flat, "max_tokens": MAX_TOKENS}).for_model(model.lm, model.generation)
    prompts = exact_match.encode(model.need_tokenizer(), asked)
    compiled, key = self._decoder.compile_seconds, jax.random.key(0)
    run = lambda some: self._decoder.run(decoding.method, model.params, some, key, args.batch_size)
    run(prompts)  # the first execution of a program is slower than the others
    found = measurements(model, asked, [run(prompts) for _ in range(args.repeats)])
    compiling = self._decoder.compile_seconds - compiled
    return found | {"compile_seconds": compiling, "dtype": model.lm.config.precision}


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
    "--runs", type=pathlib.Path, required=True, help="folder of the trained models"
  )
  parser.add_argument("--out", type=pathlib.Path, required=True, help="JSON lines, added to")
  parser.add_argument("--write_prompts", type=pathlib.Path, help="write them to this .jsonl alone")
  parser.add_argument("--set", choices=SETS, default="methods", help="which models")
  parser.add_argument("--count", type=int, default=300, help="exercises")
  parser.add_argument("--seed", type=int, default=0, help="of the exercises")
  parser.add_argument("--batch_size", type=int, default=1, help="prompts decoded together")
  parser.add_argument("--repeats", type=int, default=1, help="of all prompts; speeds are medians")
  args = parser.parse_args(argv)

  asked = exercises("test", args.count, args.seed)
  if args.write_prompts:
    lines_of = (json.dumps({"prompt": exercise.prompt}) + "\n" for exercise in asked)
    args.write_prompts.write_text("".join(lines_of))
    return 0
  args.out.parent.mkdir(parents=True, exist_ok=True)
  lines, about = record.JsonLines(args.out), record.provenance()
  done = {json.dumps(r["settings"], sort_keys=True) for r in lines.records}
  for model in SETS[args.set]:
    if not (args.runs / model.folder / "config.json").is_file():
      print(f"left out: no model in {args.runs / model.folder}")
      continue
    bench = Bench(args.runs / model.folder)
    for number, flat in enumerate(model.decoders, 1):
      settings = bench.settings(model, flat, args)
      if json.dumps(settings, sort_keys=True) in done:
        continue
      found = bench.measure(flat, asked, args)
      when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
      lines.append({"settings": settings, **found, "time": when, **about})
      print(
        f"{model.label} {number}/{len(model.decoders)}: {flat} "
        f"{found['accuracy']['value']:.1%} right, {found['tpf']:.2f} tokens per forward",
        flush=True,
      )
  return 0


if __name__ == "__main__":
  sys.exit(main())
