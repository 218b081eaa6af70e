"""`transformers`, greedy and with prompt look-up, in turns with our AR and methods without training.

  python experiments/smollm2/rivals.py --prompts=spec_bench.jsonl --table=ngrams.safetensors \
    --raw=runs/rivals_raw.jsonl --out=rivals.jsonl

The prompts are those of `measure.py`, the weights the same in float32; one prompt at a time, as many
tokens as AR gives. The first token of `transformers` comes with the prompt's forward: both are taken off.
Re-running the command resumes. Needs the extra `parity`.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import points
import torch
from measure import difference, methods_of, prompts_of

from sbdjax.bench import per_prompt, torch_llama
from sbdjax.decode.base import Limits
from sbdjax.decode.causal.ar import AR
from sbdjax.decode.decoding import from_flat
from sbdjax.decode.generate import Result
from sbdjax.decode.method import Method
from sbdjax.evals import record
from sbdjax.interop.pretrained import load_pretrained
from sbdjax.nn import adapter

LOOKUP_TOKENS = 10  # transformers' own advice
# Of `measure.METHODS`, beside AR; those that draft from n-grams need --table.
OURS = ("prompt look-up of 4", "n-gram look-up of 1 to 15")

Run = tuple[list[int], dict[str, Any]]


def of_transformers(
  generate: Callable[..., torch_llama.Generated],
  prompt: list[int],
  count: int,
  first: torch_llama.Generated,
  **options: Any,
) -> Run:
  """The tokens, and numbers of the forwards after the prompt's, for `count` tokens.

  Args:
    first: one token after the same prompt.
  """
  whole = generate([prompt], count, **options)
  share = count / max(1, count - 1)
  run = {
    "valid": count,
    "nfe": max(1, whole.forwards - first.forwards) * share,
    "query_tokens": (whole.query_tokens - first.query_tokens) * share,
    "drafted": None,  # not told
    "accepted": None,
    "seconds": max(1e-9, whole.seconds - first.seconds) * share,
  }
  return whole.tokens[0], run


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  add = parser.add_argument
  add("--checkpoint", default="smollm2-135m")
  add("--prompts", help="spec_bench.jsonl")
  add("--stories", type=int, help="so many openings of embedded stories instead")
  add("--per_kind", type=int, default=20)
  add("--longest", type=int, default=1536)
  add("--max_tokens", type=int, default=128)
  add("--table", default="", help="file of n-grams for the methods that draft from one")
  add("--threads", type=int, default=2, help="of torch")
  add("--minutes", type=float, help="stop after the prompt at which they are over")
  add("--raw", required=True, help=".jsonl of prompts, added to")
  add("--out", required=True, help=".jsonl of methods")
  args = parser.parse_args(argv)
  if (args.prompts is None) == (args.stories is None):
    parser.error("give --prompts or --stories")
  torch.set_num_threads(args.threads)
  model = load_pretrained(args.checkpoint, dtype="float32")
  kinds, prompts = prompts_of(model, args)
  limits = Limits(args.max_tokens, tuple(model.generation.eos_ids))
  decoder = per_prompt.PromptDecoder(model.need_lm(), model.params, limits, args.longest)
  llama = torch_llama.make_llama(model.need_lm().config, adapter.split(model.params)[0])
  generate = lambda *args, **options: torch_llama.generate(llama, *args, **options)
  settings = methods_of([name for name in OURS if args.table or "n-gram" not in name], args.table)
  methods = {name: from_flat(flat).method for name, flat in settings.items()}

  def ours(method: Method, prompt: list[int], kept: Any) -> Result:
    return decoder.run(method, prompt, kept, jax.random.key(0))

  for method in methods.values():  # compiled and warm
    ours(method, prompts[0], decoder.prefill(AR(), prompts[0])[0])
  theirs: dict[str, dict[str, Any]] = {
    "transformers": {},
    "transformers, prompt look-up": {"prompt_lookup_num_tokens": LOOKUP_TOKENS},
  }
  about = {
    "checkpoint": args.checkpoint,
    "dtype": "float32",
    "max_tokens": args.max_tokens,
    "threads": args.threads,
    "methods": settings | theirs,
  }
  raw = pathlib.Path(args.raw)
  lines = points.read(raw, about) if raw.exists() else []
  provenance, out = record.provenance(), record.JsonLines(raw)
  *_, quickest = methods.values()
  start = time.perf_counter()
  for i in range(len(lines), len(prompts)):
    prompt = prompts[i]
    kept, seconds = decoder.prefill(AR(), prompt)
    # How many tokens there are, from the method that takes the least time: all texts are compared.
    count, first = ours(quickest, prompt, kept).valid, generate([prompt], 1)
    ways: dict[str, Callable[[], Run]] = {
      name: functools.partial(lambda m, p, k: as_run(ours(m, p, k)), method, prompt, kept)
      for name, method in methods.items()
    }
    for name, options in theirs.items():
      ways[name] = functools.partial(of_transformers, generate, prompt, count, first, **options)
    done = {name: ways[name]() for name in points.order([*ways], i)}
    reference = done["AR"][0]
    for tokens, run in done.values():
      if tokens != reference:
        run["differs"] = difference(decoder, prompt, kept, reference, tokens)
    line = {"index": i, "kind": kinds[i], "prompt_tokens": len(prompt), "prefill_seconds": seconds}
    runs = {name: done[name][1] for name in ways}
    lines.append(line | {"runs": runs, "settings": about} | provenance)
    out.append(lines[-1])
    minutes = (time.perf_counter() - start) / 60
    print(f"{i + 1} of {len(prompts)} prompts, {minutes:.1f} min", file=sys.stderr, flush=True)
    if args.minutes is not None and minutes > args.minutes:
      break
  points.write(pathlib.Path(args.out), lines)
  return 0


def as_run(result: Result) -> Run:
  return result.text_tokens, {field: getattr(result, field) for field in points.FIELDS}


if __name__ == "__main__":
  sys.exit(main())
