"""How often FreeDave and static decoding give the same text, by dtype.

  python experiments/freedave_stories260k/agreement.py --checkpoint=runs/bd4 --dtypes=float32,bfloat16

In float32 every text must be equal. In bfloat16 a forward over several drafts rounds otherwise than
one over a single block, so a choice between two nearly equal candidates may fall differently, and
from there on the texts are different ones. One JSON line per dtype and setting: `rows_equal`, the
share of prompts with the same canvas, and `agreed_before`, the mean share of the canvas that stands
before the first difference.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from sbdjax.decode.decoding import Decoding, from_flat
from sbdjax.decode.generate import Decoder
from sbdjax.evals import record
from sbdjax.evals.sweep import Bench
from sbdjax.evals.sweep_points import make_point
from sbdjax.interop.pretrained import load_pretrained

SETTINGS = (
  dict(draft_steps=4, eager=False, draft_mode="batch"),
  dict(draft_steps=4, eager=False, draft_mode="tree"),
  dict(draft_steps=8, eager=True, draft_mode="batch"),
  dict(draft_steps=8, eager=True, draft_mode="tree"),
  dict(draft_steps=8, eager=True, draft_mode="tree", reuse_verified_kv=True),
)


def canvases(model, decoding: Decoding, prompts, seed: int) -> np.ndarray:
  """int [prompts, canvas] of one method."""
  method = decoding.for_model(model.lm, model.generation).method
  decoder = Decoder(model.lm, decoding.limits(()))
  results = decoder.generate(method, model.params, prompts, jax.random.key(seed))
  return np.array([result.tokens for result in results])


def agreement(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
  differ = a != b
  before = np.where(differ.any(axis=1), differ.argmax(axis=1), a.shape[1])
  return {
    "rows_equal": float(np.mean(~differ.any(axis=1))),
    "agreed_before": float(np.mean(before / a.shape[1])),
  }


def compared(model, prompts, common: dict[str, Any]) -> Iterator[dict[str, Any]]:
  """Of each setting how often the texts equal those of static decoding."""
  plain = canvases(model, from_flat({"name": "static", **common}), prompts, seed=0)
  for settings in SETTINGS:
    decoding = from_flat({"name": "freedave", **common, **settings})
    found = canvases(model, decoding, prompts, seed=0)
    yield {**common, **settings, **agreement(plain, found), "prompts": len(prompts)}


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--checkpoint", required=True)
  parser.add_argument("--dtypes", default="float32,bfloat16")
  parser.add_argument("--prompts", type=int, default=32)
  parser.add_argument("--max_tokens", type=int, default=64)
  parser.add_argument("--temperature", type=float, default=0.0)
  args = parser.parse_args()
  where = {"checkpoint": args.checkpoint, "num_prompts": args.prompts}
  point = make_point({"sweep": where, "decoder": {}, "data": {"source": "stories"}}, {})
  prompts = Bench().prompts(point)
  common = dict(max_tokens=args.max_tokens, temperature=args.temperature)
  for dtype in args.dtypes.split(","):
    model = load_pretrained(args.checkpoint, dtype=dtype)
    about = {"dtype": dtype, "checkpoint": args.checkpoint}
    about |= {"weights_crc32": record.fingerprint(model.params)}
    for line in compared(model, prompts, common):
      print(json.dumps(about | line | record.provenance()), flush=True)


if __name__ == "__main__":
  main()
