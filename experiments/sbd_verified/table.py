"""The comparison as a table and a picture: what each decoder saves, and what that is worth.

  python experiments/sbd_verified/table.py runs/verified/points.jsonl experiments/sbd_verified

Expected speed-ups are the roofline's (sbdjax.bench.roofline) for a Llama-3.1-8B in bf16 after a
cache of 1,024 tokens on an H200: measured tokens per forward over the slowdown of a forward as wide
as the measured ones. They are no measurement.
"""

import argparse
import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from sbdjax.bench import roofline

LLAMA_8B = roofline.NetworkShape(
  num_layers=32,
  d_model=4096,
  attention_width=4096,
  kv_width=1024,
  kv_cache_width=1024,
  ffn_width=14336,
  ffn_products=3,
  vocab_size=128_256,
  weight_bytes=2,
  kv_bytes=2,
)
BATCH_SIZES, CACHE = (1, 8, 32), 1024


def name_of(decoder: dict) -> str:
  """What distinguishes a point, for people."""
  if decoder["name"] == "ar":
    return "AR"
  if decoder["name"] == "sbd":
    return f"SBD, entropy bound {decoder['gamma']}, k={decoder['block_size']}"
  words = [decoder["drafting"].replace("_", "-"), f"k={decoder['block_size']}"]
  if decoder.get("points"):
    words.append(f"{decoder['points']} point" + "s" * (decoder["points"] > 1))
  if decoder["candidates"]:
    words.append("second choices")
  return "verified, " + ", ".join(words)


def row_of(point: dict, ar: dict) -> dict:
  """The numbers of one point."""
  width = point["query_tokens"] / point["nfe"]
  expected = {
    batch: roofline.drafting_speedup(
      LLAMA_8B, roofline.HARDWARE["h200"], point["tpf"], width, CACHE, batch
    )
    for batch in BATCH_SIZES
  }
  return dict(
    name=name_of(point["settings"]["decoder"]),
    same=point["text_crc32"] == ar["text_crc32"],
    tpf=point["tpf"],
    width=width,
    nll=point["judge_nll"],
    speed=point["tokens_per_second"],
    expected=expected,
  )


def markdown(rows: list[dict]) -> str:
  heads = [f"expected, batch {batch}" for batch in BATCH_SIZES]
  head = ["decoding", "text as AR", "tokens per forward", "query tokens per forward", "judge NLL"]
  lines = ["| " + " | ".join([*head, *heads, "tokens/s here"]) + " |"]
  lines.append("|" + "---|" * (len(head) + len(heads) + 1))
  for r in rows:
    cells = [r["name"], "yes" if r["same"] else "no", f"{r['tpf']:.2f}", f"{r['width']:.1f}"]
    cells += [f"{r['nll']:.3f}", *(f"{x:.2f}x" for x in r["expected"].values())]
    lines.append("| " + " | ".join([*cells, f"{r['speed']:,.0f}"]) + " |")
  return "\n".join(lines) + "\n"


def draw(rows: list[dict], path: pathlib.Path):
  """Tokens a forward against what a forward costs, with the roofline's price as level lines."""
  figure, axes = plt.subplots(figsize=(7.5, 4.6), layout="constrained")
  kinds = {
    "AR": ("black", "*"),
    "SBD": ("tab:gray", "o"),
    "verified, alternating": ("tab:blue", "v"),
    "verified, fused": ("tab:green", "^"),
    "verified, fan-out": ("tab:orange", "s"),
  }
  for kind, (color, marker) in kinds.items():
    some = [r for r in rows if r["name"].startswith(kind)]
    second = ["second choices" in r["name"] for r in some]
    axes.scatter(
      [r["width"] for r in some],
      [r["tpf"] for r in some],
      s=46,
      marker=marker,
      edgecolors=color,
      facecolors=[color if s or kind in ("AR", "SBD") else "none" for s in second],
      label=kind + (" (filled: second choices)" if any(second) else ""),
      zorder=3,
    )
  axes.set_xscale("log", base=2)
  axes.set_xlabel("query tokens per forward")
  axes.set_ylabel("tokens per forward")
  axes.set_ylim(bottom=0.8)
  axes.grid(alpha=0.3)
  axes.set_title("One SBD model; every verified point puts out the AR text", fontsize=11)
  axes.legend(fontsize=8, loc="upper left")
  figure.savefig(path, dpi=140)


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("points", help="points.jsonl of the sweep")
  parser.add_argument("out", help="folder for verified.png")
  args = parser.parse_args(argv)
  lines = pathlib.Path(args.points).read_text().splitlines()
  points = [json.loads(line) for line in lines]
  [ar] = [p for p in points if p["settings"]["decoder"]["name"] == "ar"]
  rows = [row_of(point, ar) for point in points]
  draw(rows, pathlib.Path(args.out) / "verified.png")
  print(markdown(rows))
  different = [r["name"] for r in rows if r["name"].startswith("verified") and not r["same"]]
  if different:
    print(f"error: not the AR text: {'; '.join(different)}", file=sys.stderr)
  return 1 if different else 0


if __name__ == "__main__":
  sys.exit(main())
