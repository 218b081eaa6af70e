"""Packs a training workdir into one .safetensors file: how the shipped weights were made.

  python experiments/sbd_stories260k/export.py runs/recipe sbdjax/assets/stories260K_sbd.safetensors \
    --made_by "the commands, for the header"
"""

import argparse
import sys

import jax

from sbdjax.interop import native
from sbdjax.interop.pretrained import load_pretrained


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("checkpoint", help="anything load_pretrained opens")
  parser.add_argument("out", help="the .safetensors file to write")
  parser.add_argument("--tokenizer", default="tok512")
  parser.add_argument("--made_by", default="", help="kept in the file's header")
  args = parser.parse_args(argv)
  p = load_pretrained(args.checkpoint)
  settings = dict(
    tokenizer=args.tokenizer, eos_ids=list(p.generation.eos_ids), made_by=args.made_by
  )
  native.write(args.out, p.lm.config, jax.device_get(p.params), settings)
  print(f"wrote {args.out}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
