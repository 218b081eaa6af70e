"""Decoding methods on Spec-Bench's prompts, in turns on every prompt.

  python experiments/smollm2/measure.py --prompts=spec_bench.jsonl --adapter=adapter.safetensors \
    --out=points.jsonl

For every kind of prompt --per_kind questions at equal distances, their first turns, written by the
chat template of --checkpoint, greedy, at most --max_tokens tokens. Each prompt is run once; then every
method decodes it, in an order that rotates from prompt to prompt. What is timed is the decoding loop of
one prompt. Lossless methods must give AR's tokens: where the first difference lies between two tokens
whose logits differ by less than 1e-3, it is a tie, and counted. What methods that are not lossless write
is scored by the model itself, in float32. With --dtype=mixed the methods of --float32 are decoded in
float32, too, and are rows of their own.

One JSON line a method is added to --out: sums and intervals, and for each prompt its kind, tokens,
forwards, query tokens and seconds.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ablation import openings

from sbdjax import prompts as prompting
from sbdjax.bench import per_prompt, torch_llama
from sbdjax.bench.peers import compare_tokens, logit_gap
from sbdjax.data import files
from sbdjax.decode.base import Limits
from sbdjax.decode.causal.ar import AR
from sbdjax.decode.decoding import from_flat
from sbdjax.decode.generate import Result
from sbdjax.decode.stream import Streamer
from sbdjax.evals import record
from sbdjax.interop.pretrained import Pretrained, load_pretrained
from sbdjax.nn import adapter as adapters

# Categories of MT-Bench, which are one kind of Spec-Bench.
CONVERSATION = (
  "writing",
  "roleplay",
  "reasoning",
  "math",
  "coding",
  "extraction",
  "stem",
  "humanities",
)
TIE = 1e-3

_ALTERNATING = {"name": "sbd_verified", "block_size": 4, "drafting": "alternating"}
_FUSED = {"name": "sbd_verified", "block_size": 4, "drafting": "fused"}
_FAN_OUT = {"name": "sbd_verified", "block_size": 4, "drafting": "fan_out", "points": 2}
_LOOKUP = {"lookup": "text"}
METHODS: dict[str, dict[str, Any]] = {
  "AR": {"name": "ar"},
  "Jacobi": {"name": "jacobi", "block_size": 4},
  "window + n-gram recycling": {
    "name": "jacobi_window", "block_size": 4, "pool": "ngrams", "n_gram": 4, "num_candidates": 3,
  },
  "prompt look-up": {"name": "sbd_verified", "drafting": "none", **_LOOKUP},
  "SBD, EB 0.1": {"name": "sbd", "block_size": 4, "gamma": 0.1},
  "SBD, EB 0.5": {"name": "sbd", "block_size": 4, "gamma": 0.5},
  "SBD, EB 1.5": {"name": "sbd", "block_size": 4, "gamma": 1.5},
  "verified, alternating": _ALTERNATING,
  "verified, fused": _FUSED,
  "verified, fan-out 2": _FAN_OUT,
  "verified, alternating, second choices": {**_ALTERNATING, "candidates": True},
  "verified, alternating + look-up": {**_ALTERNATING, **_LOOKUP},
  "verified, fused + look-up": {**_FUSED, **_LOOKUP},
}  # fmt: skip


def kind_of(category: str) -> str:
  """Of the six kinds of Spec-Bench."""
  return "conversation" if category in CONVERSATION else category


def read_questions(path: str, per_kind: int) -> list[tuple[str, str]]:
  """(kind, first turn) of `per_kind` questions of each kind, at equal distances."""
  by_kind = collections.defaultdict(list)
  for line in files.read_text(pathlib.Path(path)).splitlines():
    question = json.loads(line)
    by_kind[kind_of(question["category"])].append(question["turns"][0])
  chosen = []
  for kind, turns in by_kind.items():
    at = np.linspace(0, len(turns), per_kind, endpoint=False).astype(int)
    chosen += [(kind, turns[i]) for i in at]
  return chosen


Runs = dict[str, list[Result]]
LOSSY = ("sbd",)


class Way(NamedTuple):
  """One row of the table.

  Attributes:
    settings: of the decoder.
    model: what it decodes.
    decoder: of that model.
  """

  settings: dict[str, Any]
  model: Pretrained
  decoder: per_prompt.PromptDecoder


def decode_all(
  judge: per_prompt.PromptDecoder, prompts: Sequence[Sequence[int]], ways: dict[str, Way]
) -> tuple[Runs, dict[str, list[float]], list[float]]:
  """Results of every way, one a prompt; nats of AR's texts and of those of methods that are not
  lossless, under `judge`; and the seconds of each prompt's own forward."""
  built = {name: from_flat(way.settings).method for name, way in ways.items()}
  names, key = list(built), jax.random.key(0)
  decoders = {id(way.decoder): way.decoder for way in ways.values()} | {id(judge): judge}
  kept = {i: decoder.prefill(AR(), prompts[0])[0] for i, decoder in decoders.items()}
  for name, way in ways.items():  # compiled and warm
    way.decoder.run(built[name], prompts[0], kept[id(way.decoder)], key)
    print(f"compiled {name}", file=sys.stderr, flush=True)
  judged = [name for name in names if ways[name].settings["name"] in ("ar", *LOSSY)]
  runs: Runs = {name: [] for name in names}
  nats: dict[str, list[float]] = {name: [] for name in judged}
  prefill_seconds = []
  for i, prompt in enumerate(prompts):
    done = {at: decoder.prefill(AR(), prompt) for at, decoder in decoders.items()}
    prefill_seconds.append(done[id(ways["AR"].decoder)][1])
    for j in range(len(names)):
      name = names[(i + j) % len(names)]
      way = ways[name]
      runs[name].append(way.decoder.run(built[name], prompt, done[id(way.decoder)][0], key))
    for name in judged:
      nats[name].append(judge.nll(prompt, done[id(judge)][0], runs[name][-1].text_tokens))
    if (i + 1) % 10 == 0:
      print(f"{i + 1} of {len(prompts)} prompts", file=sys.stderr, flush=True)
  return runs, nats, prefill_seconds


def differences(
  model: Pretrained, results: Sequence[Result], reference: Sequence[Result]
) -> dict[str, int]:
  """How many texts differ from AR's, and how many of them by a tie."""
  lm = model.need_lm()
  found = {"texts_that_differ": 0, "by_ties": 0}
  for ours, theirs in zip(results, reference, strict=True):
    if ours.text_tokens == theirs.text_tokens:
      continue
    before = theirs.prompt_tokens
    gap = lambda text, a, b: logit_gap(lm, model.params, [*before, *text], a, b)  # noqa: B023
    difference = compare_tokens(theirs.text_tokens, [ours.text_tokens], gap)
    found["texts_that_differ"] += 1
    found["by_ties"] += difference is not None and abs(difference.logit_gap) < TIE
  return found


def line(
  name: str,
  settings: dict[str, Any],
  kinds: Sequence[str],
  results: Sequence[Result],
  reference: Sequence[Result],
) -> dict[str, Any]:
  """The record of a method: all prompts, and each kind alone."""
  of = lambda field, rows: [getattr(r, field) for r in rows]
  groups = {"all": range(len(kinds))} | {
    kind: [i for i, k in enumerate(kinds) if k == kind] for kind in dict.fromkeys(kinds)
  }
  table = {}
  for group, index in groups.items():
    own, base = [results[i] for i in index], [reference[i] for i in index]
    table[group] = {
      "tokens_per_forward": per_prompt.ratio_of_sums(of("valid", own), of("nfe", own))._asdict(),
      "query_tokens_per_forward": sum(of("query_tokens", own)) / sum(of("nfe", own)),
      "tokens_per_second": sum(of("valid", own)) / sum(of("seconds", own)),
      "speed_over_ar": per_prompt.speed_ratio(
        of("valid", own), of("seconds", own), of("valid", base), of("seconds", base)
      )._asdict(),
    }
  each = {
    field: [round(x, 5) for x in of(field, results)]
    for field in ("valid", "nfe", "query_tokens", "drafted", "accepted", "seconds")
  }
  return {
    "method": name,
    "settings": settings,
    "kinds": table,
    "each": {"kind": list(kinds)} | each,
  }


def acceptance_of(
  model: Pretrained,
  prompts: Sequence[Sequence[int]],
  settings: dict[str, Any],
  max_tokens: int,
) -> dict[str, list[int]]:
  """Drafts verified and accepted at each place, counted step by step on some prompts."""
  limits = Limits(max_tokens, tuple(model.generation.eos_ids))
  method = from_flat(settings).method
  streamer = Streamer(model.need_lm(), limits, method, model.params, prompts)
  found = [
    per_prompt.acceptance(streamer.frames(i, jax.random.key(0))) for i in range(len(prompts))
  ]
  return {
    "verified": np.sum([a.verified for a in found], axis=0).tolist(),
    "accepted": np.sum([a.accepted for a in found], axis=0).tolist(),
  }


def count_places(
  model: Pretrained,
  prompts: Sequence[Sequence[int]],
  methods: dict[str, dict[str, Any]],
  args: argparse.Namespace,
) -> int:
  """Adds a line for each verified method: its drafts by place."""
  out, about = record.JsonLines(pathlib.Path(args.out)), record.provenance()
  for name, settings in methods.items():
    if settings["name"] == "sbd_verified":
      places = acceptance_of(model, prompts, settings, args.max_tokens)
      out.append({"method": name, "prompts": len(prompts), "places": places} | about)
      print(name, places, flush=True)
  return 0


def of_transformers(
  model: Pretrained,
  decoder: per_prompt.PromptDecoder,
  reference: Sequence[Result],
  threads: int,
) -> Runs:
  """`transformers` generate, greedy without and with prompt look-up, and our AR in turns with them.

  As many tokens as AR gave. The first one comes with the prompt's forward: both are taken off.
  """
  import torch

  torch.set_num_threads(threads)
  params = adapters.split(model.params)[0]
  llama = torch_llama.make_llama(model.lm.config, params)
  generate: Callable[..., torch_llama.Generated] = functools.partial(torch_llama.generate, llama)

  def theirs(prompt: list[int], count: int, **options: Any) -> Result:
    first, whole = generate([prompt], 1), generate([prompt], count, **options)
    share = count / max(1, count - 1)
    forwards = max(1, whole.forwards - first.forwards) * share
    seconds = max(1e-9, whole.seconds - first.seconds) * share
    tokens = whole.tokens[0]
    return Result(prompt, tokens, count, forwards, 1, count, 0, 0, [], "length", seconds, 1)

  def ours(prompt: list[int], count: int) -> Result:
    kept, _ = decoder.prefill(AR(), prompt)
    return decoder.run(AR(), prompt, kept, jax.random.key(0))

  ways: dict[str, Callable[[list[int], int], Result]] = {
    "AR": ours,
    "transformers": theirs,
    "transformers, prompt look-up": functools.partial(theirs, prompt_lookup_num_tokens=10),
  }
  names = list(ways)
  found: Runs = {name: [] for name in names}
  for i, r in enumerate(reference):
    for j in range(len(names)):
      name = names[(i + j) % len(names)]
      found[name].append(ways[name](r.prompt_tokens, r.valid))
  return found


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  add = parser.add_argument
  add("--checkpoint", default="smollm2-135m")
  add("--adapter", help="file of a drafting adapter")
  source = parser.add_mutually_exclusive_group(required=True)
  source.add_argument("--prompts", help="spec_bench.jsonl")
  source.add_argument("--stories", type=int, help="so many openings of embedded stories instead")
  add("--per_kind", type=int, default=20)
  add(
    "--longest", type=int, default=1536, help="tokens of a prompt; longer ones are cut at the front"
  )
  add("--max_tokens", type=int, default=128)
  add("--dtype", help="of the model, as of load_pretrained")
  add("--float32", default="", help="names between semicolons, also decoded in float32")
  add("--methods", help="names between semicolons; AR is always among them")
  add("--tuned", help="what `tune --out` wrote: its setting is one more method")
  add("--places", action="store_true", help="count drafts accepted by place, and time nothing")
  add("--transformers", type=int, default=0, help="prompts of each kind for transformers; 0: none")
  add("--threads", type=int, default=2, help="of torch")
  add("--out", required=True, help=".jsonl, added to")
  args = parser.parse_args(argv)
  about, start = record.provenance(), time.perf_counter()
  model = load_pretrained(args.checkpoint, adapter=args.adapter, dtype=args.dtype)
  if args.stories:
    prompts = openings(model, args.stories)
    kinds = ["stories"] * len(prompts)
  else:
    asked = read_questions(args.prompts, args.per_kind)
    kinds = [kind for kind, _ in asked]
    prompts = [prompting.encode_turn(model, text)[-args.longest :] for _, text in asked]
  wanted = args.methods.split(";") if args.methods else list(METHODS)
  methods = {name: METHODS[name] for name in dict.fromkeys(["AR", *wanted])}
  if args.tuned:
    methods["as tuned"] = json.loads(pathlib.Path(args.tuned).read_text())["decoder"]
  if args.places:
    return count_places(model, prompts, methods, args)
  limits = Limits(args.max_tokens, tuple(model.generation.eos_ids))
  open_decoder = lambda m: per_prompt.PromptDecoder(m.need_lm(), m.params, limits, args.longest)
  decoder = judge = open_decoder(model)
  ways = {name: Way(settings, model, decoder) for name, settings in methods.items()}
  if model.lm.config.precision != "float32":
    exact = load_pretrained(args.checkpoint, adapter=args.adapter, dtype="float32")
    judge = open_decoder(exact)
    for name in filter(None, args.float32.split(";")):
      ways[f"{name}, float32"] = Way(METHODS[name], exact, judge)
  runs, nats, prefill_seconds = decode_all(judge, prompts, ways)
  out, reference = record.JsonLines(pathlib.Path(args.out)), runs["AR"]
  common = {
    "checkpoint": args.checkpoint,
    "adapter": args.adapter and pathlib.Path(args.adapter).name,
    "max_tokens": args.max_tokens,
    "prompt_tokens": [len(p) for p in prompts],
    "prefill_seconds": sum(prefill_seconds),
  } | about
  for name, way in ways.items():
    found = line(name, way.settings, kinds, runs[name], reference)
    found |= differences(way.model, runs[name], reference)
    found["dtype"] = way.model.lm.config.precision
    if name in nats:
      tokens = [r.valid for r in runs[name]]
      found["judge_nll"] = per_prompt.ratio_of_sums(nats[name], tokens)._asdict()
    out.append(found | common)
    show(found)
  if args.transformers:
    few = [
      i for kind in dict.fromkeys(kinds)
      for i in np.flatnonzero(np.array(kinds) == kind)[: args.transformers]
    ]  # fmt: skip
    theirs = of_transformers(model, decoder, [reference[i] for i in few], args.threads)
    base = theirs.pop("AR")
    for name, results in theirs.items():
      found = line(name, {}, [kinds[i] for i in few], results, base)
      out.append(found | differences(model, results, base) | common)
      show(found)
  print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)
  return 0


def show(found: dict[str, Any]) -> None:
  """One line on a method."""
  row = found["kinds"]["all"]
  speed = row["speed_over_ar"]
  print(
    f"{found['method']}: {row['tokens_per_forward']['value']:.2f} tokens per forward, "
    f"{row['query_tokens_per_forward']:.1f} query tokens, {row['tokens_per_second']:.1f} tokens/s, "
    f"{speed['value']:.2f} [{speed['low']:.2f}, {speed['high']:.2f}] x AR",
    flush=True,
  )


if __name__ == "__main__":
  sys.exit(main())
