"""Memory of a decoding program against the number of drafts d, as the compiler plans it.

  python experiments/freedave_stories260k/peak_memory.py \
    --out=experiments/freedave_stories260k/memory.jsonl

Peak bytes that the compiled loop holds beside weights and prompts: its caches, its state and its
largest temporaries. A plan depends on shapes alone, so any weights of the model's size will do.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import jax

from sbdjax import memory
from sbdjax.decode.base import Limits
from sbdjax.decode.decoding import from_flat
from sbdjax.decode.generate import Decoder
from sbdjax.decode.programs import shared
from sbdjax.evals import record
from sbdjax.interop.pretrained import Pretrained, load_pretrained

CHECKPOINT = "stories260K-sbd"
ROWS, PROMPT, MAX_TOKENS = 12, 16, 200
DRAFT_STEPS = (1, 2, 4, 8, 16)
KINDS: dict[str, dict[str, Any]] = {
  "batch": {"draft_mode": "batch"},
  "tree": {"draft_mode": "tree"},
  "tree, eager": {"draft_mode": "tree", "eager": True},
}


def settings() -> Iterator[tuple[str, int, dict[str, Any]]]:
  """(label, d, flat settings): static decoding first."""
  common = {"block_size": 4, "attention": "block_causal"}
  yield "static", 0, {"name": "static", **common}
  for label, kind in KINDS.items():
    for d in DRAFT_STEPS:
      yield label, d, {"name": "freedave", "draft_steps": d, **kind, **common}


def planned(model: Pretrained, flat: dict[str, Any]) -> int:
  """Bytes of the one program that decodes ROWS prompts."""
  using = shared(model.lm)
  decoder = Decoder(model.lm, Limits(MAX_TOKENS), using=using)
  method = from_flat(flat).for_model(model.lm, model.generation).method
  prompts = [[1] * PROMPT] * ROWS
  # A token a row: the program is the one of longer texts.
  list(decoder.generate(method, model.params, prompts, jax.random.key(0), ROWS, [1] * ROWS))
  (program,) = using.programs
  return memory.of_program(program).made


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--out", required=True, help=".jsonl to write")
  path = pathlib.Path(parser.parse_args(argv).out)
  model = load_pretrained(CHECKPOINT)
  about = {"checkpoint": CHECKPOINT, "rows": ROWS, "prompt": PROMPT, "max_tokens": MAX_TOKENS}
  lines = [
    {"kind": label, "draft_steps": d, "decoder": flat, "bytes": planned(model, flat)}
    for label, d, flat in settings()
  ]
  first = about | record.provenance()
  path.write_text("".join(json.dumps(line) + "\n" for line in (first, *lines)))
  return 0


if __name__ == "__main__":
  sys.exit(main())
