"""Tables of this folder's page, from its records.

python experiments/benchmarks/tables.py      # prints them; experiments/tables.py writes them
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from sbdjax.evals import markdown

HERE = pathlib.Path(__file__).resolve().parent
GIB, MIB = 2**30, 2**20


def lines(name: str) -> list[dict[str, Any]]:
  """Records of a file of this folder."""
  return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


def ranged(row: dict[str, Any], digits: int = 0, between: str = " - ") -> str:
  low, high = (f"{row[name]:,.{digits}f}" for name in ("low", "high"))
  return f"{row['tokens_per_second']:,.{digits}f} ({low}{between}{high})"


def decoding() -> str:
  """decoding_cpu.jsonl."""
  one, many = (record["rows"] for record in lines("decoding_cpu.jsonl"))
  names = {
    "ar": "sbdjax AR",
    "sbd block_size=16 rule=eb_entropy gamma=0.1": "sbdjax SBD, k = 16, gamma 0.1",
    "transformers generate, torch with 1 thread": "transformers `generate`, torch, 1 thread",
    "transformers generate, torch with 2 threads": "transformers `generate`, torch, 2 threads",
  }
  rows = [(names[a["decoder"]], ranged(a), ranged(b)) for a, b in zip(one, many, strict=True)]
  return markdown.table(("decoding, tokens/s", "batch 1", "batch 32"), rows)


def over_generate(batch: int) -> float:
  """AR's speed / that of the faster `generate`."""
  rows = next(r["rows"] for r in lines("decoding_cpu.jsonl") if r["rows"][0]["batch_size"] == batch)
  return rows[0]["tokens_per_second"] / max(row["tokens_per_second"] for row in rows[2:])


def dry_run() -> str:
  """dry_run.jsonl, gibibytes of each device."""
  head = (
    "config", "devices", "compiled for", "parameters", "optimizer", "gradients",
    "activations, workspace", "peak", "fits 141 GiB",
  )  # fmt: skip
  rows = []
  for r in lines("dry_run.jsonl"):
    sizes = (r[part] for part in ("params", "optimizer", "gradients", "activations", "total"))
    shown = [f"{size / GIB:.2f}" for size in sizes]
    fits = "yes" if r["fits"] else "no"
    config = r["config"].removeprefix("preset:")
    rows.append((config, r["target"], r["compiled_for"], *shown, fits))
  return markdown.table(head, rows)


def _losses(*starts: str) -> str:
  rows = [
    (r["name"], *(f"{x['ratio']:.2f} ({x['low']:.2f} - {x['high']:.2f})" for x in (r["cpu"], r["wall"])))
    for start in starts
    for r in lines("cpu_losses.jsonl")
    if r["name"].startswith(start)
  ]  # fmt: skip
  return markdown.table(("case", "processor time", "by the clock"), rows)


def prepared() -> str:
  """Parameters prepared for decoding."""
  return _losses("decode ", "prepare ", "head ")


def cached() -> str:
  """Attention over a cache in chunks."""
  return _losses("cache ")


def overhead() -> str:
  """Samplers' loops against their forwards."""
  return _losses("overhead ")


def update() -> str:
  """The SBD update."""
  return _losses("logits ", "sbd over ntp ")


def training_attention() -> str:
  """Attention in training."""
  return _losses("training attention ", "length ")


def narrow() -> str:
  """Weights kept in fewer bits."""
  return _losses("bfloat16 ", "int8 ")


def _peers(number: int) -> str:
  head = (
    "contestant", "threads", "tokens/s", "our AR / it", "tokens per forward",
    "share of read bandwidth",
  )  # fmt: skip
  rows = [
    (
      r["contestant"],
      r["threads"],
      ranged(r, 1),
      f"{r['ratio']:.2f} [{r['ratio_low']:.2f}, {r['ratio_high']:.2f}]",
      f"{r['tokens_per_forward']:.2f}",
      f"{r['of_read']:.0%}",
    )
    for r in lines("peers_cpu.jsonl")[number]["rows"]
  ]
  return markdown.table(head, rows)


def peer(number: int, contestant: str) -> dict[str, Any]:
  """A contestant of a line of peers_cpu.jsonl."""
  (found,) = [r for r in lines("peers_cpu.jsonl")[number]["rows"] if r["contestant"] == contestant]
  return found


def peers_110m() -> str:
  """peers_cpu.jsonl, first line."""
  return _peers(0)


def peers_260k() -> str:
  """peers_cpu.jsonl, second line."""
  return _peers(1)


def peers_blocks() -> str:
  """peers_cpu.jsonl, third line."""
  return _peers(2)


def training() -> str:
  """training_cpu.jsonl."""
  head = ("L", "V", "parameters, millions", "ms per update", "peak MiB", "compile, processor s")
  (record,) = lines("training_cpu.jsonl")
  rows = []
  for r in record["rows"]:
    seconds, low, high = (f"{1000 * r[name]:.1f}" for name in ("seconds", "low", "high"))
    size = f"{r['num_params'] / 1e6:.2f}"
    peak, compiled = f"{r['peak_bytes'] / MIB:.0f}", f"{r['compile_cpu_seconds']:.0f}"
    rows.append(
      (r["length"], f"{r['vocab_size']:,}", size, f"{seconds} ({low}-{high})", peak, compiled)
    )
  return markdown.table(head, rows)


def attention() -> str:
  """attention_cpu.jsonl, training."""
  (record,) = lines("attention_cpu.jsonl")
  found = {(r["length"], r["work"], r["backend"]): r for r in record["training"]["rows"]}
  ms = lambda r: f"{1e3 * r['seconds']:.1f} ({1e3 * r['low']:.1f}-{1e3 * r['high']:.1f})"
  rows = []
  for length in dict.fromkeys(length for length, _, _ in found):
    works = ("forward", "forward+backward")
    cells = [ms(found[length, work, of]) for work in works for of in ("xla", "xla_dense")]
    rows.append((length, f"{cells[0]} ms", *cells[1:]))
  head = ("L", "forward, xla", "xla_dense", "forward+backward, xla", "xla_dense")
  return markdown.table(head, rows)


def sizes() -> str:
  """decoding_sizes_cpu.jsonl."""
  rows = [r for record in lines("decoding_sizes_cpu.jsonl") for r in record["rows"]]
  head = ("decoder", "batch", "tokens/s", "TPF", "ms per step", "ms per forward", "overhead")
  cells = [
    (
      " ".join(r["decoder"].split()[:2]),
      r["batch_size"],
      ranged(r),
      f"{r['tokens'] / r['batch_size'] / r['nfe']:.2f}",
      f"{1e3 * r['step_seconds']:.2f}",
      f"{1e3 * r['forward_seconds']:.2f}",
      f"{r['overhead']:+.0%} ({r['overhead_low']:+.0%} to {r['overhead_high']:+.0%})",
    )
    for r in rows
  ]
  return markdown.table(head, cells)


def compiling() -> str:
  """compile_cpu.jsonl."""
  (record,) = lines("compile_cpu.jsonl")
  found: dict[str, list[str]] = {}
  for r in record["rows"]:
    found.setdefault(r["program"], []).append(f"{r['seconds']:.1f}")
  rows = [(name, *seconds) for name, seconds in found.items()]
  return markdown.table(("program", "2 layers", "32 layers"), rows)


def throughput() -> str:
  """throughput_cpu.jsonl: continuous decoding beside padded batches."""
  rows = []
  for record in lines("throughput_cpu.jsonl"):
    for row in record["rows"]:
      ratio = f"{row['ratio']:.2f}"
      if record["pairs"] > 1:
        ratio += f" ({row['ratio_low']:.2f} - {row['ratio_high']:.2f})"
      padded, slots = row["padded"], row["continuous"]
      counts = [f"{100 * way['occupancy']:.0f} %" for way in (padded, slots)]
      speeds = [f"{way['tokens_per_second']:,.0f}" for way in (padded, slots)]
      rows.append(
        (record["checkpoint"], row["method"], record["prompts"], *speeds, ratio,
         f"{row['counted_ratio']:.2f}", *counts, slots["programs"], record["pairs"])
      )  # fmt: skip
  head = (
    "model", "decoding", "prompts", "tokens/s, padded", "continuous", "ratio (range)", "in forwards",
    "useful, padded", "continuous", "programs", "pairs",
  )  # fmt: skip
  return markdown.table(head, rows)


def of_method(checkpoint: str, method: str) -> tuple[dict[str, Any], dict[str, Any]]:
  """(record, row) of a method of a model in throughput_cpu.jsonl."""
  found = [
    (record, row)
    for record in lines("throughput_cpu.jsonl")
    for row in record["rows"]
    if record["checkpoint"] == checkpoint and row["settings"]["name"] == method
  ]
  ((record, row),) = found
  return record, row


def pairs_of(prompts: int) -> tuple[float, float, float]:
  """(ratio, lowest, highest) of AR of the small model on so many prompts, over pairs of runs."""
  (row,) = (
    row
    for record in lines("throughput_cpu.jsonl")
    for row in record["rows"]
    if record["prompts"] == prompts and row["method"] == "ar"
  )
  return row["ratio"], row["ratio_low"], row["ratio_high"]


def filled(checkpoint: str) -> tuple[float, float]:
  """What filling every slot could give at most: 1 / the share of useful forwards, over methods."""
  found = [
    1 / row["padded"]["occupancy"]
    for record in lines("throughput_cpu.jsonl")
    for row in record["rows"]
    if record["checkpoint"] == checkpoint
  ]
  return min(found), max(found)


def useful(checkpoint: str, method: str) -> float:
  """Share of a padded batch's forwards that belonged to texts which had not ended."""
  return of_method(checkpoint, method)[1]["padded"]["occupancy"]


def faster(checkpoint: str, method: str) -> float:
  """Continuous decoding / padded batches, tokens/s, by a method of a model."""
  return of_method(checkpoint, method)[1]["ratio"]


def tokens_a_text(checkpoint: str, method: str) -> float:
  """Mean length of what was decoded."""
  record, row = of_method(checkpoint, method)
  return row["tokens"] / record["prompts"]


def limit(checkpoint: str, method: str) -> float:
  """Mean of the rows' limits."""
  return of_method(checkpoint, method)[0]["limits"]["mean"]


def compiled(case: str) -> tuple[float, float]:
  """Seconds of compiling before and after a change."""
  (found,) = [r for r in lines("cpu_losses.jsonl") if r["name"] == case]
  return tuple(found["compile_seconds"])


def peak(number: int) -> float:
  """GiB of a device, by the line of dry_run.jsonl."""
  return lines("dry_run.jsonl")[number]["total"] / GIB


def read_speed(threads: int) -> tuple[float, float, float]:
  """GB/s of reading memory beside the first line of peers_cpu.jsonl: median, low, high."""
  found = lines("peers_cpu.jsonl")[0]["read_bandwidth"][str(threads)]
  return tuple(found[name] / 1e9 for name in ("median", "low", "high"))


def times_ar(number: int, contestant: str) -> tuple[float, float, float]:
  """Speed of a contestant / that of our AR, with its interval over turns."""
  found = peer(number, contestant)
  return tuple(1 / found[name] for name in ("ratio", "ratio_high", "ratio_low"))


def _of_llama2c(number: int) -> str:
  """Our AR's tokens/s / those of llama2.c with the number of threads that suits it, with the interval."""
  rows = [r for r in lines("peers_cpu.jsonl")[number]["rows"] if r["contestant"] == "llama2.c"]
  fastest = max(rows, key=lambda r: r["tokens_per_second"])
  return f"{fastest['ratio']:.2f} [{fastest['ratio_low']:.2f}, {fastest['ratio_high']:.2f}]"


def in_short() -> str:
  """What came out, in a sentence."""
  return (
    "tokens/s, updates, compile time and memory beside other programs on the same weights; **a loss**: our AR has "
    f"{_of_llama2c(0)} (110M parameters) and {_of_llama2c(1)} (260K) times the tokens/s of llama2.c on two CPU cores; also rooflines and dry "
    "runs of full-size configs"
  )


def of_copy(block_size: int) -> float:
  """Bytes a second of attention over a cache / those of a copy."""
  (record,) = lines("attention_cpu.jsonl")
  (found,) = [r for r in record["decoding"]["rows"] if r["block_size"] == block_size]
  return found["of_copy"]


def copied() -> tuple[float, float, float]:
  """GB/s of a copy in that run: median, low, high."""
  (record,) = lines("attention_cpu.jsonl")
  return tuple(record["decoding"]["copy"][name] / 1e9 for name in ("median", "low", "high"))


def opening() -> float:
  """Peak memory of opening a checkpoint, above what was held before / bytes of its parameters."""
  (record,) = lines("loading_cpu.jsonl")
  return (record["peak"] - record["before"]) / record["bytes"]


def startup(part: str) -> tuple[float, float, float]:
  """(median, low, high) of a part of startup_cpu.jsonl."""
  (record,) = lines("startup_cpu.jsonl")
  return tuple(record[part][name] for name in ("median", "low", "high"))


def kept_memory() -> tuple[float, float, float]:
  """Tokens/s of training with freed memory kept / without: (median, low, high) of pairs."""
  (record,) = lines("host_pages_cpu.jsonl")
  return tuple(record["ratio"][name] for name in ("median", "low", "high"))


def system_share(way: str) -> float:
  """Median share of a training's processor time that went to the system, memory `kept` or `given_back`."""
  (record,) = lines("host_pages_cpu.jsonl")
  return statistics.median(record[f"{way}_system_share"])


TABLES: Sequence[Any] = (
  decoding, dry_run, prepared, cached, overhead, update, training_attention, narrow, peers_110m,
  peers_260k, peers_blocks, training, attention, sizes, compiling,
)  # fmt: skip


def main(argv: list[str] | None = None) -> int:
  argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args(argv)
  for table in TABLES:
    print(f"{table.__doc__}\n\n{table()}\n")
  return 0


if __name__ == "__main__":
  sys.exit(main())
