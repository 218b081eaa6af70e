"""Log-likelihoods of benchmark items, choice by choice, beside `transformers` on the same weights.

  python -m sbdjax evaluate --checkpoint=smollm2-135m --data=DIR --dtype=float32 \
    --tasks=hellaswag,arc_easy,piqa --offset=500 --limit=60 --out=runs/ours.jsonl
  python experiments/benchmarks_lm/beside_transformers.py runs/ours.jsonl --data=DIR --out=beside_transformers.jsonl

Reads what the first command wrote, and scores the same requests with `transformers`, which opens the
same GGUF file and cuts the texts by its own tokenizer, float32. A line of the record is a task, with the
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
from sbdjax.evals.tasks import registry
from sbdjax.evals.tasks.files import Files
from sbdjax.evals.tasks.run import outcome
from sbdjax.evals.tasks.task import Item, Request, Scored, Task
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
    with torch.no_grad():
      logits = self._model(torch.tensor([ids[:-1]])).logits[0, len(before) - 1 :].double()
    targets = torch.tensor(ids[len(before) :])
    log_p = torch.log_softmax(logits, dim=-1).gather(1, targets[:, None])
    return Scored(float(log_p.sum()), bool((logits.argmax(-1) == targets).all()), len(targets))


def beside(
  task: Task, items: list[Item], ours: list[dict[str, Any]], theirs: Theirs
) -> dict[str, Any]:
  """What is recorded of a task.

  Args:
    ours: the records of the same items.

  Raises:
    ValueError: they are of other items.
  """
  if [item.id for item in items] != [line["id"] for line in ours]:
    raise ValueError(f"{task.full_name}: the records are of other items")
  scored = [[theirs.score(request) for request in item.requests()] for item in items]
  log_probs = [[s.log_prob for s in each] for each in scored]
  apart = [
    float(np.abs(np.subtract(line["log_probs"], found)).max())
    for line, found in zip(ours, log_probs, strict=True)
  ]
  values = [dict(task.score(item, each)) for item, each in zip(items, scored, strict=True)]
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
  parser.add_argument("ours", type=pathlib.Path, help="the --out of evaluate")
  parser.add_argument(
    "--data", required=True, metavar="DIR", help="folder of the benchmarks' files"
  )
  parser.add_argument("--out", type=pathlib.Path, required=True, help="the JSON lines")
  args = parser.parse_args(argv)
  lines = [json.loads(line) for line in args.ours.read_text().splitlines()]
  run = next(line for line in lines if "settings" in line)
  chosen = run["chosen"]
  file = smollm2.path()
  theirs = Theirs(file)
  about = {"settings": run["settings"] | chosen, "file": file.name} | record.provenance()
  about["packages"] |= {"torch": torch.__version__, "transformers": transformers.__version__}
  with args.out.open("w") as out:
    for name in chosen["tasks"].split(","):
      task = registry.find(name)
      items = task.items(Files(args.data), offset=chosen["offset"], limit=chosen["limit"])
      ours = [line for line in lines if line.get("task") == task.full_name]
      found = beside(task, items, ours, theirs) | about
      out.write(json.dumps(found) + "\n")
      print(
        f"{name}: {found['choices']} choices, at most {found['largest_difference']:.2g} nats apart"
      )
  return 0


if __name__ == "__main__":
  sys.exit(main())
