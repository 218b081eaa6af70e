"""Decoding methods on Spec-Bench's prompts, in turns on every prompt.

  python experiments/smollm2/measure.py --prompts=spec_bench.jsonl --adapter=adapter.safetensors \
    --table=ngrams.safetensors --raw=runs/smollm2_raw.jsonl --out=points.jsonl

For every kind of prompt --per_kind questions at equal distances, their first turns, written by the
chat template of --checkpoint, greedy, at most --max_tokens tokens. Each prompt is run once; then every
method decodes it, in an order that rotates from prompt to prompt. What is timed is the decoding loop of
one prompt. Lossless methods must give AR's tokens: where the first difference lies between two tokens
whose logits differ by less than 1e-3, it is a tie, and counted. What methods that are not lossless write
is scored by the model itself, in float32. With --dtype=mixed the methods of --float32 are decoded in
float32, too, and are rows of their own.

One line per prompt is added to --raw, kinds in turns; re-running the command resumes. At the end
`points.py` makes --out of it: one JSON line per method.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import points
from ablation import openings

from sbdjax import prompts as prompting
from sbdjax.bench import per_prompt
from sbdjax.data import files
from sbdjax.decode.base import Limits
from sbdjax.decode.causal.ar import AR
from sbdjax.decode.decoding import from_flat
from sbdjax.decode.generate import Result
from sbdjax.decode.kept import KeptText
from sbdjax.decode.stream import Streamer
from sbdjax.evals import diversity, record
from sbdjax.interop.pretrained import Pretrained, load_pretrained

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
_ALTERNATING = {"name": "sbd_verified", "block_size": 4, "drafting": "alternating"}
_WITH_LOOKUP = {**_ALTERNATING, "block_size": 3, "lookup_tokens": 2}
_NO_MASKS = {"name": "sbd_verified", "drafting": "none"}
# Settings by name; those with `lookup=ngrams` get the file of --table.
METHODS: dict[str, dict[str, Any]] = {
  "AR": {"name": "ar"},
  "Jacobi": {"name": "jacobi", "block_size": 4},
  "window + n-gram recycling": {
    "name": "jacobi_window", "block_size": 4, "pool": "ngrams", "n_gram": 4, "num_candidates": 3,
  },
  "prompt look-up of 4": {**_NO_MASKS, "lookup": "text", "lookup_tokens": 4},
  **{
    f"n-gram look-up of {n}": {
      **_NO_MASKS, "lookup": "ngrams", "lookup_tokens": n, "longest_match": 3, "table_tokens": n,
    }
    for n in (2, 4)
  },
  "n-gram look-up of 1 to 15": {**_NO_MASKS, "lookup": "ngrams"},
  "SBD, EB 0.1": {"name": "sbd", "block_size": 4, "gamma": 0.1},
  "SBD, EB 0.5": {"name": "sbd", "block_size": 4, "gamma": 0.5},
  "SBD, EB 1.5": {"name": "sbd", "block_size": 4, "gamma": 1.5},
  "verified, alternating": _ALTERNATING,
  "verified, alternating, second choices": {**_ALTERNATING, "candidates": True},
  "verified, alternating, blocks of 3 + look-up of 2": {**_WITH_LOOKUP, "lookup": "text"},
  "verified, alternating, blocks of 3 + n-grams of 2": {
    **_WITH_LOOKUP, "lookup": "ngrams", "longest_match": 3, "table_tokens": 2,
  },
  "verified, fused": {"name": "sbd_verified", "block_size": 4, "drafting": "fused"},
  "verified, fan-out 2": {
    "name": "sbd_verified", "block_size": 4, "drafting": "fan_out", "points": 2,
  },
}  # fmt: skip


def methods_of(wanted: Sequence[str], table: str) -> dict[str, dict[str, Any]]:
  """Settings of AR and of `wanted`; where that is empty, of all methods that need no more than `table`.

  Raises:
    ValueError: a method is unknown, or drafts from a table and there is none.
  """
  if unknown := set(wanted) - set(METHODS):
    raise ValueError(f"no methods {sorted(unknown)}; there are {list(METHODS)}")
  reads = [name for name in METHODS if METHODS[name].get("lookup") == "ngrams"]
  if not table and (lacking := [name for name in wanted if name in reads]):
    raise ValueError(f"{lacking} draft from n-grams: give their --table")
  names = dict.fromkeys(["AR", *(wanted or METHODS)])
  more = {"lookup_table": table}
  return {
    name: METHODS[name] | (more if name in reads else {})
    for name in names
    if table or name not in reads
  }


def kind_of(category: str) -> str:
  """Of the six kinds of Spec-Bench."""
  return "conversation" if category in CONVERSATION else category


def read_questions(path: str, per_kind: int) -> list[tuple[str, str]]:
  """(kind, first turn) of `per_kind` questions of each kind, at equal distances; kinds in turns."""
  by_kind = collections.defaultdict(list)
  for line in files.read_text(pathlib.Path(path)).splitlines():
    question = json.loads(line)
    by_kind[kind_of(question["category"])].append(question["turns"][0])
  at = lambda turns: np.linspace(0, len(turns), per_kind, endpoint=False).astype(int)
  chosen = [[(kind, turns[i]) for i in at(turns)] for kind, turns in by_kind.items()]
  return [question for several in zip(*chosen, strict=True) for question in several]


# Methods that do not give AR's text.
LOSSY = ("sbd",)


class Way(NamedTuple):
  """One row of the table.

  Attributes:
    settings: of the decoder.
    decoder: of the model, in one precision.
  """

  settings: dict[str, Any]
  decoder: per_prompt.PromptDecoder


class Bench:
  """All ways, warm, and the one that judges."""

  def __init__(self, ways: dict[str, Way], judge: per_prompt.PromptDecoder, prompt: list[int]):
    """Compiles every way on `prompt`."""
    self._ways, self._judge = ways, judge
    self._methods = {name: from_flat(way.settings).method for name, way in ways.items()}
    used = {id(way.decoder): way.decoder for way in ways.values()}
    self._decoders = used | {id(judge): judge}
    kept = {i: decoder.prefill(AR(), prompt)[0] for i, decoder in self._decoders.items()}
    for name, way in ways.items():
      way.decoder.run(self._methods[name], prompt, kept[id(way.decoder)], jax.random.key(0))
      print(f"compiled {name}", file=sys.stderr, flush=True)

  def line(self, prompt: list[int], index: int) -> dict[str, Any]:
    """What every way makes of prompt `index`: numbers, differences to AR's text of the same model in
    the same precision, and nats of texts under the judge."""
    done = {i: decoder.prefill(AR(), prompt) for i, decoder in self._decoders.items()}
    results: dict[str, Result] = {}
    for name in points.order([*self._ways], index):
      decoder = self._ways[name].decoder
      kept = done[id(decoder)][0]
      results[name] = decoder.run(self._methods[name], prompt, kept, jax.random.key(0))
    judged = done[id(self._judge)][0]
    runs = {}
    for name, result in results.items():
      own = {field: getattr(result, field) for field in points.FIELDS}
      own["seconds"] = round(own["seconds"], 5)
      own |= diversity.repeats(result.text_tokens)._asdict()
      settings, decoder = self._ways[name].settings, self._ways[name].decoder
      if settings["name"] in ("ar", *LOSSY):
        own["nats"] = round(self._judge.nll(prompt, judged, result.text_tokens), 4)
      reference = results["AR"].text_tokens
      if result.text_tokens != reference:
        own["differs"] = difference(
          decoder, prompt, done[id(decoder)][0], reference, result.text_tokens
        )
      runs[name] = own
    seconds = done[id(self._ways["AR"].decoder)][1]
    return {"prompt_tokens": len(prompt), "prefill_seconds": round(seconds, 5), "runs": runs}


def difference(
  decoder: per_prompt.PromptDecoder,
  prompt: list[int],
  kept: KeptText,
  reference: list[int],
  ours: list[int],
) -> dict[str, Any]:
  """Where a text leaves AR's, and by how much AR's token was better there (logits; None: at an end)."""
  agreed = next((i for i, (a, b) in enumerate(zip(reference, ours, strict=False)) if a != b), None)
  if agreed is None:
    return {"at": min(len(reference), len(ours)), "gap": None}
  nats = [decoder.nll(prompt, kept, [*ours[:agreed], x[agreed]]) for x in (ours, reference)]
  return {"at": agreed, "gap": nats[0] - nats[1]}


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
  add("--table", default="", help="file of n-grams for the methods that draft from one")
  add("--methods", help="names between semicolons; AR is always among them")
  add("--places", action="store_true", help="count drafts accepted by place, and time nothing")
  add("--minutes", type=float, help="stop after the prompt at which they are over")
  add("--pause", help="a file: while it is there, no prompt is begun (other work may run)")
  add("--raw", help=".jsonl of prompts, added to; not with --places")
  add("--out", required=True, help=".jsonl of methods; with --places added to")
  args = parser.parse_args(argv)
  try:
    methods = methods_of(args.methods.split(";") if args.methods else (), args.table)
  except ValueError as error:
    parser.error(str(error))
  model = load_pretrained(args.checkpoint, adapter=args.adapter, dtype=args.dtype)
  kinds, prompts = prompts_of(model, args)
  if args.places:
    return count_places(model, prompts, methods, args)
  if not args.raw:
    parser.error("--raw is needed")
  about = {
    "checkpoint": args.checkpoint,
    "adapter": args.adapter and pathlib.Path(args.adapter).name,
    "dtype": model.lm.config.precision,
    "max_tokens": args.max_tokens,
    "longest": args.longest,
    "methods": methods,
  }
  raw = pathlib.Path(args.raw)
  lines = points.read(raw, about) if raw.exists() else []
  todo = range(len(lines), len(prompts))
  if todo:
    ways, judge = ways_of(model, methods, args)
    bench, out = Bench(ways, judge, prompts[0]), record.JsonLines(raw)
    provenance, start = record.provenance(), time.perf_counter()
    for i in todo:
      while args.pause and pathlib.Path(args.pause).exists():
        time.sleep(1)
      line = bench.line(prompts[i], i)
      lines.append({"index": i, "kind": kinds[i], **line, "settings": about} | provenance)
      out.append(lines[-1])
      minutes = (time.perf_counter() - start) / 60
      print(f"{i + 1} of {len(prompts)} prompts, {minutes:.1f} min", file=sys.stderr, flush=True)
      if args.minutes is not None and minutes > args.minutes:
        break
  points.write(pathlib.Path(args.out), lines)
  return 0


def prompts_of(model: Pretrained, args: argparse.Namespace) -> tuple[list[str], list[list[int]]]:
  """Their kinds, and their tokens."""
  if args.stories:
    found = openings(model, args.stories)
    return ["stories"] * len(found), found
  asked = read_questions(args.prompts, args.per_kind)
  encoded = [list(prompting.encode_turn(model, text))[-args.longest :] for _, text in asked]
  return [kind for kind, _ in asked], encoded


def ways_of(
  model: Pretrained, methods: dict[str, dict[str, Any]], args: argparse.Namespace
) -> tuple[dict[str, Way], per_prompt.PromptDecoder]:
  """The rows, and the decoder that judges."""
  limits = Limits(args.max_tokens, tuple(model.generation.eos_ids))
  open_decoder = lambda m: per_prompt.PromptDecoder(m.need_lm(), m.params, limits, args.longest)
  decoder = judge = open_decoder(model)
  ways = {name: Way(settings, decoder) for name, settings in methods.items()}
  if model.lm.config.precision != "float32":
    exact = load_pretrained(args.checkpoint, adapter=args.adapter, dtype="float32")
    judge = open_decoder(exact)
    for name in filter(None, args.float32.split(";")):
      ways[f"{name}, float32"] = Way(methods[name], judge)
  return ways, judge


if __name__ == "__main__":
  sys.exit(main())
