"""Decoding methods on Spec-Bench's prompts, in turns on every prompt.

  python experiments/smollm2/measure.py --prompts=spec_bench.jsonl --adapter=adapter.safetensors \
    --table=ngrams.safetensors --raw=runs/smollm2_raw.jsonl --out=points.jsonl

For every kind of prompt --per_kind questions at equal distances, their first turns, written by the
chat template of --checkpoint, greedy, at most --max_tokens tokens. Each prompt is run once; then every
method decodes it, in an order that rotates from prompt to prompt; with --transformers that package takes
its turns as well. What is timed is the decoding loop of one prompt. Lossless methods must give AR's
tokens: where the first difference lies between two tokens whose logits differ by less than 1e-3, it is a
tie, and counted. What methods that are not lossless write is scored by the model itself, in float32. With
--dtype=mixed the methods of --float32 are decoded in float32, too, and are rows of their own.

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
from typing import Any

import jax
import numpy as np
import points
from ablation import openings
from rows import LOSSY, TRANSFORMERS, Engine, Row, Run, SbdjaxEngine, TransformersEngine, methods_of

from sbdjax import prompts as prompting
from sbdjax.bench import per_prompt
from sbdjax.data import files
from sbdjax.decode.base import Limits
from sbdjax.decode.decoding import from_flat
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


class Bench:
  """All rows, warm, and the model that judges."""

  def __init__(self, rows: dict[str, Row], judge: SbdjaxEngine, prompt: list[int]):
    """Compiles every row on `prompt`."""
    self._rows, self._judge = rows, judge
    self._engines: dict[int, Engine] = {id(row.engine): row.engine for row in rows.values()}
    self._engines[id(judge)] = judge
    kept = {i: engine.prefill(prompt)[0] for i, engine in self._engines.items()}
    for name, row in rows.items():
      row.run(prompt, kept[id(row.engine)])
      print(f"compiled {name}", file=sys.stderr, flush=True)

  def line(self, prompt: list[int], index: int) -> dict[str, Any]:
    """What every row makes of prompt `index`: numbers, differences to AR's text of the same model in
    the same precision, and nats of texts under the judge."""
    done = {i: engine.prefill(prompt) for i, engine in self._engines.items()}
    results: dict[str, Run] = {}
    for name in points.order([*self._rows], index):
      row = self._rows[name]
      results[name] = row.run(prompt, done[id(row.engine)][0])
    judged, reference = done[id(self._judge)][0], results["AR"][0]
    runs = {}
    for name, row in self._rows.items():
      text, numbers = results[name]
      own = numbers | {"seconds": round(numbers["seconds"], 5)} | diversity.repeats(text)._asdict()
      own["text"] = text
      if row.settings["name"] in ("ar", *LOSSY):
        own["nats"] = round(self._judge.decoder.nll(prompt, judged, text), 4)
      if text != reference:
        ours = row.engine if isinstance(row.engine, SbdjaxEngine) else self._judge
        own["differs"] = difference(ours.decoder, prompt, done[id(ours)][0], reference, text)
      runs[name] = own
    seconds = done[id(self._rows["AR"].engine)][1]
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
  add("--transformers", action="store_true", help="beside them, with the extra `parity`")
  add("--threads", type=int, default=2, help="of transformers")
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
  if args.transformers:
    if about["dtype"] != "float32":
      parser.error("--transformers runs the model in float32: leave out --dtype")
    about |= {"threads": args.threads, "methods": methods | TRANSFORMERS}
  raw = pathlib.Path(args.raw)
  lines = points.read(raw, about) if raw.exists() else []
  todo = range(len(lines), len(prompts))
  if todo:
    rows, judge = rows_of(model, methods, args)
    bench, out = Bench(rows, judge, prompts[0]), record.JsonLines(raw)
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


def rows_of(
  model: Pretrained, methods: dict[str, dict[str, Any]], args: argparse.Namespace
) -> tuple[dict[str, Row], SbdjaxEngine]:
  """The rows by name, and the model that judges."""
  engine = judge = SbdjaxEngine(model, args.max_tokens, args.longest)
  rows = {name: engine.row(settings) for name, settings in methods.items()}
  if model.lm.config.precision != "float32":
    exact = load_pretrained(args.checkpoint, adapter=args.adapter, dtype="float32")
    judge = SbdjaxEngine(exact, args.max_tokens, args.longest)
    for name in filter(None, args.float32.split(";")):
      rows[f"{name}, float32"] = judge.row(methods[name])
  if args.transformers:
    other = TransformersEngine(model, args.max_tokens, args.threads)
    rows |= {name: other.row(options) for name, options in TRANSFORMERS.items()}
  return rows, judge


if __name__ == "__main__":
  sys.exit(main())
