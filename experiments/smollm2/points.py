"""What `measure.py` wrote prompt by prompt, as one line per method: sums, and intervals over prompts.

python experiments/smollm2/points.py runs/smollm2_raw.jsonl --out=points.jsonl
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from sbdjax import bootstrap
from sbdjax.data import files
from sbdjax.errors import DataError
from sbdjax.evals import diversity

# Of a `Result`, kept for each prompt and method.
FIELDS = ("valid", "nfe", "query_tokens", "drafted", "accepted", "seconds")
# Logits that differ by less are a tie.
TIE = 1e-3
_OF_PROMPTS = ("index", "kind", "prompt_tokens", "prefill_seconds", "runs", "settings")


def read(path: pathlib.Path, settings: dict[str, Any] | None = None) -> list[dict[str, Any]]:
  """The lines of a file, one per prompt.

  Raises:
    DataError: they are of other `settings`, or of several.
  """
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  wanted = settings or lines[0]["settings"]
  if any(line["settings"] != wanted for line in lines):
    raise DataError(f"{path} holds measurements of other settings: name another file")
  return lines


def order(names: Sequence[str], index: int) -> list[str]:
  """In which prompt `index` runs the methods: it rotates, one further after every round, or prompts
  whose kinds are in turns would have one order for each kind."""
  first = (index + index // len(names)) % len(names)
  return [*names[first:], *names[:first]]


def point(name: str, lines: Sequence[dict[str, Any]], base: str = "AR") -> dict[str, Any]:
  """The record of a method: all prompts, and each kind alone."""
  kinds = [line["kind"] for line in lines]
  groups = {"all": range(len(lines))} | {
    kind: [i for i, k in enumerate(kinds) if k == kind] for kind in dict.fromkeys(kinds)
  }
  of = lambda method, field, at: [lines[i]["runs"][method][field] for i in at]
  table = {}
  for group, at in groups.items():
    tokens, forwards, seconds = (of(name, field, at) for field in ("valid", "nfe", "seconds"))
    theirs = (of(base, field, at) for field in ("valid", "seconds"))
    queries = of(name, "query_tokens", at)
    table[group] = {
      "prompts": len(at),
      "tokens_per_forward": bootstrap.ratio_of_sums(tokens, forwards)._asdict(),
      "query_tokens_per_forward": None if None in queries else sum(queries) / sum(forwards),
      "tokens_per_second": sum(tokens) / sum(seconds),
      "speed_over_ar": bootstrap.paired_ratio(tokens, seconds, *theirs)._asdict(),
    }
  every = range(len(lines))
  differ = [line["runs"][name]["differs"] for line in lines if "differs" in line["runs"][name]]
  found = {
    "method": name,
    "kinds": table,
    "texts_that_differ": len(differ),
    "by_ties": sum(x["gap"] is not None and abs(x["gap"]) < TIE for x in differ),
    "largest_gap": max((abs(x["gap"]) for x in differ if x["gap"] is not None), default=None),
    "each": {"kind": kinds} | {field: of(name, field, every) for field in FIELDS},
  }
  if all("repeated" in line["runs"][name] for line in lines):  # since they are counted
    columns = of(name, "repeated", every), of(name, "ngrams", every)
    found["repetition"] = bootstrap.ratio_of_sums(*columns)._asdict()
  if all("text" in line["runs"][name] for line in lines):
    found["distinct_2"] = diversity.distinct(of(name, "text", every), 2)
  if "nats" in lines[0]["runs"][name]:
    nats = of(name, "nats", every)
    found["judge_nll"] = bootstrap.ratio_of_sums(nats, of(name, "valid", every))._asdict()
  return found


def write(path: pathlib.Path, lines: Sequence[dict[str, Any]]) -> None:
  """Writes a line for each method, whole or not at all, and prints it."""
  settings = dict(lines[0]["settings"])
  methods = settings.pop("methods")
  provenance = {k: v for k, v in lines[0].items() if k not in _OF_PROMPTS}
  common = settings | {
    "prompt_tokens": [line["prompt_tokens"] for line in lines],
    "prefill_seconds": sum(line["prefill_seconds"] for line in lines),
    "commits": list(dict.fromkeys(line["git_commit"] for line in lines)),
  }
  written = []
  for name in lines[0]["runs"]:
    found = point(name, lines)
    written.append(json.dumps(found | {"settings": methods.get(name, {})} | common | provenance))
    show(found)
  files.write_atomically(path, lambda file: file.write(("\n".join(written) + "\n").encode()))


def show(found: dict[str, Any]) -> None:
  """One line on a method."""
  row = found["kinds"]["all"]
  speed, query = row["speed_over_ar"], row["query_tokens_per_forward"]
  print(
    f"{found['method']}: {row['tokens_per_forward']['value']:.2f} tokens per forward, "
    f"{'uncounted' if query is None else f'{query:.1f}'} query tokens, {row['tokens_per_second']:.1f} tokens/s, "
    f"{speed['value']:.2f} [{speed['low']:.2f}, {speed['high']:.2f}] x AR, "
    f"{found['texts_that_differ']} texts differ",
    flush=True,
  )


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("raw", help=".jsonl that `measure.py` wrote")
  parser.add_argument("--out", required=True, help=".jsonl of methods")
  args = parser.parse_args(argv)
  write(pathlib.Path(args.out), read(pathlib.Path(args.raw)))
  return 0


if __name__ == "__main__":
  sys.exit(main())
