"""Log-likelihoods of benchmark items, choice by choice, beside `transformers` on the same weights.

  python -m sbdjax evaluate --checkpoint=smollm2-135m --data=DIR --dtype=float32 \
    --tasks=hellaswag,arc_easy,piqa --offset=500 --limit=60 --out=runs/ours.jsonl
  python experiments/benchmarks_lm/beside_transformers.py runs/ours.jsonl --data=DIR --out=beside_transformers.jsonl

Reads what the first command wrote, in one file or in several, and scores the same requests with
`transformers`, which opens the same GGUF file and cuts the texts by its own tokenizer, float32. Whole texts are
scored in the windows of `--max_length` tokens that `evaluate` took. A line of the record is a task, with the
log-likelihoods of both. Needs the extra `parity`.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import pre_tokenizers

from sbdjax.evals import record
from sbdjax.evals.scoring.requests import windows
from sbdjax.evals.tasks import registry
from sbdjax.evals.tasks.files import Files
from sbdjax.evals.tasks.run import outcome
from sbdjax.evals.tasks.task import Item, Request, Rolling, Scored, Task
from sbdjax.interop import smollm2


class Theirs:
  """SmolLM2 as `transformers` opens its GGUF file."""

  def __init__(self, file: pathlib.Path):
    where = dict(pretrained_model_name_or_path=file.parent, gguf_file=file.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    self._model = model.eval()
    self._tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    # It does not know the cut that the file names ("smollm": digits by themselves) and takes GPT-2's.
    self._tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
      [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )

  def _encode(self, text: str) -> list[int]:
    return self._tokenizer.encode(text, add_special_tokens=False)

  def score(self, request: Request) -> Scored:
    """One forward over context and continuation."""
    before = self._encode(request.context)
    ids = self._encode(request.context + request.continuation)
    return self._forward(ids, len(before))

  def rolling(self, text: str, max_tokens: int) -> Scored:
    """A whole text after the bos token, each token once, as lm-evaluation-harness cuts it."""
    bos = [self._tokenizer.bos_token_id]
    cut = windows(self._encode(text), bos, max_tokens)
    found = [self._forward([*w.context, *w.continuation], len(w.context)) for w in cut]
    return Scored(sum(x.log_prob for x in found), None, sum(x.tokens for x in found))

  def _forward(self, ids: list[int], before: int) -> Scored:
    """The tokens from `before` on."""
    with torch.no_grad():
      logits = self._model(torch.tensor([ids[:-1]])).logits[0, before - 1 :].double()
    targets = torch.tensor(ids[before:])
    log_p = torch.log_softmax(logits, dim=-1).gather(1, targets[:, None])
    return Scored(float(log_p.sum()), bool((logits.argmax(-1) == targets).all()), len(targets))


def beside(
  task: Task, items: list[Item], ours: list[dict[str, Any]], theirs: Theirs, max_tokens: int
) -> dict[str, Any]:
  """What is recorded of a task.

  Args:
    ours: the records of the same items.
    max_tokens: of a window of a whole text.

  Raises:
    ValueError: they are of other items.
  """
  if [item.id for item in items] != [line["id"] for line in ours]:
    raise ValueError(f"{task.full_name}: the records are of other items")
  scored = [
    [theirs.rolling(item.text, max_tokens)]
    if isinstance(item, Rolling)
    else [theirs.score(request) for request in item.requests()]
    for item in items
  ]
  log_probs = [[s.log_prob for s in each] for each in scored]
  apart = [
    float(np.abs(np.subtract(line["log_probs"], found)).max())
    for line, found in zip(ours, log_probs, strict=True)
  ]
  answers = [
    each[0] if isinstance(item, Rolling) else each for item, each in zip(items, scored, strict=True)
  ]
  values = [dict(task.score(item, x)) for item, x in zip(items, answers, strict=True)]
  found = outcome(task.metrics, values).metrics
  own = outcome(task.metrics, [line["values"] for line in ours]).metrics
  return {
    "task": task.full_name,
    "items": len(items),
    "choices": sum(map(len, scored)),
    "same_tokens": [[s.tokens for s in each] for each in scored] == [x["tokens"] for x in ours],
    "largest_difference": max(apart),
    "same_answers": sum(
      int(np.argmax(line["log_probs"]) == np.argmax(each))
      for line, each in zip(ours, log_probs, strict=True)
    ),
    "ours": own,
    "transformers": found,
    "each": {
      "id": [item.id for item in items],
      "ours": [line["log_probs"] for line in ours],
      "transformers": [[round(x, 5) for x in each] for each in log_probs],
    },
  }


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    "ours", nargs="+", type=pathlib.Path, help="the --out of evaluate, one or more"
  )
  parser.add_argument(
    "--data", required=True, metavar="DIR", help="folder of the benchmarks' files"
  )
  parser.add_argument("--out", type=pathlib.Path, required=True, help="the JSON lines")
  args = parser.parse_args(argv)
  file = smollm2.path()
  theirs = Theirs(file)
  provenance = record.provenance()
  provenance["packages"] |= {"torch": torch.__version__, "transformers": transformers.__version__}
  with args.out.open("w") as out:
    for path in args.ours:
      lines = [json.loads(line) for line in path.read_text().splitlines()]
      runs = [line for line in lines if "settings" in line]
      settings = runs[0]["settings"]  # those of all runs of a file
      if settings["chat"]:
        parser.error(f"{path} was made with --chat, which is not compared here")
      for name, chosen in {
        n: r["chosen"] for r in runs for n in r["chosen"]["tasks"].split(",")
      }.items():
        about = {"settings": settings | chosen, "file": file.name} | provenance
        task = registry.find(name)
        which = {key: chosen[key] for key in ("offset", "limit", "spread")}
        items = task.items(Files(args.data), num_fewshot=settings["num_fewshot"], **which)
        known = {line["id"]: line for line in lines if line.get("task") == task.full_name}
        ours = [known[item.id] for item in items if item.id in known]
        found = beside(task, items, ours, theirs, settings["max_length"] or 2048) | about
        out.write(json.dumps(found) + "\n")
        out.flush()
        print(
          f"{name}: {found['choices']} choices, at most {found['largest_difference']:.2g} nats apart"
        )
  return 0


if __name__ == "__main__":
  sys.exit(main())
