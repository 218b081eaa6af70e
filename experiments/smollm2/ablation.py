"""What a drafting adapter should be trained on, tried on stories260K: the frozen base, several seeds.

  python experiments/smollm2/ablation.py --out=ablation.jsonl

Every run trains a new adapter on the base's own stories (embedded) with one change against the
reference: hard labels, blocks masked whole, rank 16 on all projections, AdamW at 4e-3. What counts are
drafts accepted in a verification, of k - 1 = 7 at most: verified SBD, alternating, greedy, on openings
of validation stories. One JSON line a run; runs that --out has already are left out.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import sys
import tempfile
from typing import Any

import jax
import numpy as np

import sbdjax
from sbdjax import presets
from sbdjax.data import assets, files
from sbdjax.decode import Alternating, VerifiedSBD
from sbdjax.decode.base import Limits
from sbdjax.decode.generate import Decoder
from sbdjax.evals import record
from sbdjax.interop.pretrained import Pretrained, load_pretrained

K, OPENING, NEW = 8, 24, 64
REFERENCE: dict[str, Any] = {
  "loss.block_size_min": K,
  "loss.block_size_max": K,
  "loss.full_mask_fraction": 1.0,
  "optim.learning_rate": 4e-3,
  "train.batch_size": 16,
  "train.log_every": 100,
  "train.eval_every": 0,
  "train.checkpoint_every": 0,
}
VARIANTS: dict[str, dict[str, Any]] = {
  "reference": {},
  "teacher, temperature 0.5": {"loss.teacher_weight": 1.0, "loss.teacher_temperature": 0.5},
  "half labels, half teacher at 0.5": {
    "loss.teacher_weight": 0.5,
    "loss.teacher_temperature": 0.5,
  },
  "masks at random": {"loss.full_mask_fraction": 0.0},
  "rate 2e-3": {"optim.learning_rate": 2e-3},
  "rate 8e-3": {"optim.learning_rate": 8e-3},
  "rank 4": {"model.adapter.rank": 4},
}


def config_of(changes: dict[str, Any], steps: int, seed: int) -> Any:
  """The preset stories_sbd:self with an adapter and changes."""
  config = presets.load("stories_sbd:self")
  config.unlock()
  rank = changes.get("model.adapter.rank", 16)
  config.model = {"adapter": {"rank": rank, "alpha": 2.0 * rank}}
  settings = REFERENCE | changes | {"train.steps": steps, "train.seed": seed}
  settings.pop("model.adapter.rank", None)
  config.update_from_flattened_dict(settings)
  return config


def openings(model: Pretrained, count: int) -> list[list[int]]:
  """The first tokens of validation stories."""
  stories = files.read_documents(assets.path("stories_valid.txt.xz"), "<|endoftext|>")
  ids = [model.need_tokenizer().encode(str(story.body), bos=True) for story in stories]
  # Of a few stories several passages: the first tokens, and those after each full opening.
  cut = [[story[0], *story[i : i + OPENING - 1]] for i in range(1, 200, OPENING) for story in ids]
  return [opening for opening in cut if len(opening) == OPENING][:count]


def measure(model: Pretrained, prompts: list[list[int]]) -> dict[str, float]:
  """Drafts accepted in a verification, and tokens per forward."""
  decoder = Decoder(model.need_lm(), Limits(NEW, tuple(model.generation.eos_ids)))
  method = VerifiedSBD(K, Alternating())
  found = list(decoder.generate(method, model.params, prompts, jax.random.key(0), 64))
  verifications = sum(r.drafted for r in found) / (K - 1)
  return {
    "accepted": sum(r.accepted for r in found) / verifications,
    "tokens_per_forward": sum(r.valid for r in found) / sum(r.nfe for r in found),
  }


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--out", type=pathlib.Path, required=True)
  parser.add_argument("--steps", type=int, default=250)
  parser.add_argument("--seeds", type=int, default=3)
  parser.add_argument("--prompts", type=int, default=240)
  args = parser.parse_args(argv)
  about, out = record.provenance(), record.JsonLines(args.out)
  lines = args.out.read_text().splitlines() if args.out.exists() else []
  done = {(x["variant"], x["seed"]) for x in map(json.loads, lines)}
  for seed in range(args.seeds):
    for name, changes in VARIANTS.items():
      if (name, seed) in done:
        continue
      workdir = tempfile.mkdtemp()
      sbdjax.train(config_of(changes, args.steps, seed), workdir)
      model = load_pretrained(workdir)
      found = measure(model, openings(model, args.prompts))
      shutil.rmtree(workdir)
      print(f"{name}, seed {seed}: {found['accepted']:.2f} of {K - 1} accepted", flush=True)
      run = {"variant": name, "seed": seed, "changes": changes, "steps": args.steps}
      out.append(run | {"prompts": args.prompts} | found | about)
      jax.clear_caches()
  for name in VARIANTS:
    every = [json.loads(line) for line in args.out.read_text().splitlines()]
    values = [x["accepted"] for x in every if x["variant"] == name]
    print(f"| {name} | {np.mean(values):.2f} | {min(values):.2f} - {max(values):.2f} |")
  return 0


if __name__ == "__main__":
  sys.exit(main())
