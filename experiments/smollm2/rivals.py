"""`transformers` beside our AR, in turns on the prompts of `measure.py`: greedy, and with prompt look-up.

  python experiments/smollm2/rivals.py --prompts=spec_bench.jsonl --per_kind=5 \
    --raw=runs/rivals_raw.jsonl --out=rivals.jsonl

The same weights in float32, one prompt at a time, as many tokens as AR gives. The first token comes with
the prompt's forward: both are taken off. Needs the extra `parity`.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import jax
import points
import torch
from measure import prompts_of

from sbdjax.bench import per_prompt, torch_llama
from sbdjax.decode.base import Limits
from sbdjax.decode.causal.ar import AR
from sbdjax.evals import record
from sbdjax.interop.pretrained import load_pretrained
from sbdjax.nn import adapter

LOOKUP_TOKENS = 10  # transformers' own advice


def of_transformers(
  generate: Callable[..., torch_llama.Generated], prompt: list[int], count: int, **options: Any
) -> tuple[list[int], dict[str, Any]]:
  """The tokens, and numbers of the forwards after the prompt's, for `count` tokens."""
  first, whole = generate([prompt], 1), generate([prompt], count, **options)
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
  add("--per_kind", type=int, default=5)
  add("--longest", type=int, default=1536)
  add("--max_tokens", type=int, default=128)
  add("--threads", type=int, default=2, help="of torch")
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

  def ours(prompt: list[int], kept: Any) -> Any:
    return decoder.run(AR(), prompt, kept, jax.random.key(0))

  ours(prompts[0], decoder.prefill(AR(), prompts[0])[0])  # compiled and warm
  settings = {
    "checkpoint": args.checkpoint,
    "dtype": "float32",
    "max_tokens": args.max_tokens,
    "threads": args.threads,
    "methods": {"transformers, prompt look-up": {"prompt_lookup_num_tokens": LOOKUP_TOKENS}},
  }
  raw = record.JsonLines(pathlib.Path(args.raw))
  lines, provenance = [], record.provenance()
  for i, (kind, prompt) in enumerate(zip(kinds, prompts, strict=True)):
    kept, seconds = decoder.prefill(AR(), prompt)
    reference, runs = ours(prompt, kept), {}
    ways: dict[str, Callable[[], tuple[list[int], dict[str, Any]]]] = {
      "AR": lambda: as_run(ours(prompt, kept)),  # noqa: B023
      "transformers": lambda: of_transformers(generate, prompt, reference.valid),  # noqa: B023
      "transformers, prompt look-up": lambda: of_transformers(
        generate,
        prompt,  # noqa: B023
        reference.valid,  # noqa: B023
        prompt_lookup_num_tokens=LOOKUP_TOKENS,
      ),
    }
    for name in points.order([*ways], i):
      tokens, run = ways[name]()
      if tokens != reference.text_tokens:
        run["differs"] = {"at": None, "gap": None}
      runs[name] = run
    line = {"index": i, "kind": kind, "prompt_tokens": len(prompt), "prefill_seconds": seconds}
    runs = {name: runs[name] for name in ways}
    lines.append(line | {"runs": runs, "settings": settings} | provenance)
    raw.append(lines[-1])
    print(f"{i + 1} of {len(prompts)} prompts", file=sys.stderr, flush=True)
  points.write(pathlib.Path(args.out), lines)
  return 0


def as_run(result: Any) -> tuple[list[int], dict[str, Any]]:
  return result.text_tokens, {field: getattr(result, field) for field in points.FIELDS}


if __name__ == "__main__":
  sys.exit(main())
