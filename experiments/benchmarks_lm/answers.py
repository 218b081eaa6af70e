"""Answers to a benchmark by AR and by lossless decoders, in turns on every item.

  python experiments/benchmarks_lm/answers.py --task=gsm8k_cot_llama --num_fewshot=0 --chat \
    --data=DIR --limit=60 --raw=runs/gsm8k.jsonl --out=answers.jsonl

Every item is answered by every method before the next one, in an order that rotates; the prompt's
forward is run once for all and not timed. Answers end inside decoding, at a stop string, an EOS or
--max_tokens, so tokens, forwards and seconds are those until the end of the answer. Greedy.

One line per item is added to --raw, and re-running the command resumes. At the end --out gets one line
per method, in place of those of an earlier run with these settings: answers with AR's very tokens, the task's metrics with intervals, tokens per forward, and
tokens/s against AR's with an interval by bootstrap over items; under `each` what every item cost and
whether --max_tokens cut its answer ("finish": "length").

Programs that a model writes are run only with --run_generated_code.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
from typing import Any

from sbdjax.data.files import write_atomically
from sbdjax.decode.decoding import from_flat
from sbdjax.errors import UsageError
from sbdjax.evals import record, responders, turns
from sbdjax.evals.tasks import programs, registry
from sbdjax.evals.tasks.files import Files
from sbdjax.evals.tasks.run import outcome
from sbdjax.evals.tasks.task import Generation, Task
from sbdjax.interop.pretrained import load_pretrained

METHODS: dict[str, dict[str, Any]] = {
  turns.REFERENCE: {"name": "ar"},
  "prompt look-up": {"name": "sbd_verified", "drafting": "none", "lookup": "text"},
  "Jacobi": {"name": "jacobi", "block_size": 4},
  "window + n-gram recycling": {
    "name": "jacobi_window", "block_size": 4, "pool": "ngrams", "n_gram": 4, "num_candidates": 3,
  },
}  # fmt: skip
# With --adapter.
DRAFTING: dict[str, dict[str, Any]] = {
  "verified, alternating + look-up": {
    "name": "sbd_verified", "block_size": 3, "drafting": "alternating", "lookup": "text",
  },
  "verified, fused": {"name": "sbd_verified", "block_size": 4, "drafting": "fused"},
  "verified, fan-out 2": {
    "name": "sbd_verified", "block_size": 4, "drafting": "fan_out", "points": 2,
  },
}  # fmt: skip
# With --table: drafts that grow with what the text repeats.
GROWING: dict[str, dict[str, Any]] = {
  "n-gram look-up of 1 to 15": {"name": "sbd_verified", "drafting": "none", "lookup": "ngrams"},
}
# Recorded of every item, by method.
EACH = ("tokens", "nfe", "query_tokens", "seconds", "finish", "same", "values")


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add("--checkpoint", default="smollm2-135m")
  add("--adapter", help="file of a drafting adapter: three methods more")
  add("--table", help="file of n-grams: one method more")
  add("--dtype", help="of the model, as of load_pretrained")
  add("--task", required=True, help="a task whose answers are texts")
  add("--data", required=True, metavar="DIR", help="folder of the benchmarks' files")
  add("--num_fewshot", type=int, help="solved examples before each item; default: the task's")
  add("--chat", action="store_true", help="prompts as conversations, by the chat template")
  add("--offset", type=int, default=0)
  add("--limit", type=int, help="so many items; default: all")
  add("--max_tokens", type=int, help="of an answer, if less than the task's")
  add("--methods", help="names between semicolons; AR is always among them")
  add("--run_generated_code", action="store_true", help="run programs, each in a sandbox")
  add("--minutes", type=float, help="stop after the item at which they are over")
  add("--raw", required=True, help=".jsonl of items, added to")
  add("--out", required=True, help=".jsonl of methods; lines of other settings are kept")
  return parser


def methods_of(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
  """The settings of the methods that are compared."""
  tabled = {name: s | {"lookup_table": args.table} for name, s in GROWING.items()}
  known = METHODS | (DRAFTING if args.adapter else {}) | (tabled if args.table else {})
  names = args.methods.split(";") if args.methods else list(known)
  unknown = [name for name in names if name not in known]
  if unknown:
    raise UsageError(f"--methods: unknown {unknown[0]!r}: choose from {'; '.join(known)}")
  return {name: known[name] for name in dict.fromkeys([turns.REFERENCE, *names])}


def main(argv: list[str] | None = None) -> int:
  args = _parser().parse_args(argv)
  task = registry.find(args.task)
  if args.run_generated_code:
    task = programs.runnable(task)
  items = task.items(
    Files(args.data), num_fewshot=args.num_fewshot, offset=args.offset, limit=args.limit
  )
  if not all(isinstance(item, Generation) for item in items):
    raise UsageError(f"--task={args.task}: its answers are no texts")
  settings = methods_of(args)
  model = load_pretrained(args.checkpoint, adapter=args.adapter, dtype=args.dtype)
  template = responders.template_of(model.need_tokenizer()) if args.chat else None
  prompts = [turns.prompt_of(model, item, template) for item in items]
  context = model.lm.config.max_seq_len
  longest = max(map(len, prompts))
  limit = min(items[0].max_tokens, args.max_tokens or context, context - longest)
  about = {
    "checkpoint": args.checkpoint,
    "adapter": args.adapter and pathlib.Path(args.adapter).name,
    "dtype": model.lm.config.precision,
    "task": task.full_name,
    "num_fewshot": task.num_fewshot if args.num_fewshot is None else args.num_fewshot,
    "chat": args.chat,
    "stop": list(items[0].stop),
    "max_tokens": limit,
    "methods": settings,
    "run_generated_code": args.run_generated_code,
    "weights_crc32": record.fingerprint(model.params),
  }
  lines = record.JsonLines(pathlib.Path(args.raw))
  if any(line["settings"] != about for line in lines.records):
    raise UsageError(f"{args.raw} holds items of other settings: name another --raw")
  known = {line["id"]: line for line in lines.records}
  todo = [
    (item, prompt) for item, prompt in zip(items, prompts, strict=True) if item.id not in known
  ]
  if todo:
    compared = turns.Turns(
      model,
      {name: from_flat(s).method for name, s in settings.items()},
      items[0].stop,
      limit,
      longest,
    )
    compared.answers(todo[0][1], 0)  # compiles
    provenance, start = record.provenance(), time.perf_counter()
    for number, (item, prompt) in enumerate(todo):
      found = turns.record_of(task, item, compared.answers(prompt, len(known) + number))
      lines.append(found | {"settings": about} | provenance)
      minutes = (time.perf_counter() - start) / 60
      print(f"{number + 1} of {len(todo)} items, {minutes:.1f} min", file=sys.stderr, flush=True)
      if args.minutes is not None and minutes > args.minutes:
        break
  known = {line["id"]: line for line in lines.records}
  answered = [known[item.id] for item in items if item.id in known]
  write(task, answered, about, pathlib.Path(args.out))
  return 0


def write(
  task: Task, lines: list[dict[str, Any]], about: dict[str, Any], path: pathlib.Path
) -> None:
  """One line per method, in place of those with the same settings."""
  others = [line for line in record.JsonLines(path).records if line["settings"] != about]
  rows = []
  for name, summary in turns.summaries(lines).items():
    values = [line["runs"][name]["values"] for line in lines]
    each = {"id": [line["id"] for line in lines]}
    each |= {field: [line["runs"][name][field] for line in lines] for field in EACH}
    worth = {metric: list(x) for metric, x in outcome(task.metrics, values).metrics.items()}
    rows.append(
      {"method": name, "task": task.full_name}
      | json.loads(json.dumps(summary._asdict()))
      | {"values": worth, "settings": about, "each": each}
      | record.provenance()
    )
    print(
      f"{name:<34}{summary.same:>4} of {summary.items} as AR, {summary.tpf.value:.2f} tokens per "
      f"forward, {summary.speedup.value:.2f} x AR "
      f"[{summary.speedup.low:.2f}, {summary.speedup.high:.2f}]"
    )
  text = "".join(json.dumps(line) + "\n" for line in others + rows)
  write_atomically(path, lambda file: file.write(text.encode()))


if __name__ == "__main__":
  sys.exit(main())
