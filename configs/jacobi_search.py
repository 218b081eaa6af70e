"""Inference settings of a Jacobi Forcing model: tokens/s over block size and candidates (Appendix E).

  python -m sbdjax sweep --config=configs/jacobi_search.py --workdir=runs/jf_search

Multi-block decoding with rejection recycling, K = 2 and r = 0.85 as in the paper; its n-gram
verification size is `num_candidates`. A smooth surface is fitted to the grid (surface.png) and its
best point printed. The variant is the checkpoint.
"""

import itertools

from ml_collections import ConfigDict

BLOCK_SIZES = (4, 8, 16, 32)
CANDIDATES = (1, 2, 4)


def get_config(checkpoint: str = "runs/jacobi/round2") -> ConfigDict:
  return ConfigDict(
    dict(
      sweep=dict(
        checkpoint=checkpoint, judge="stories260K", num_prompts=6, batch_size=1, repeats=1
      ),
      decoder=dict(
        name="jacobi_multiblock", max_tokens=100, num_blocks=2, spawn_ratio=0.85, pool="ngrams"
      ),
      data=dict(source="stories"),
    )
  )


def get_sweep(checkpoint: str = "") -> list[dict]:
  del checkpoint
  return [
    {"decoder.block_size": k, "decoder.num_candidates": c}
    for k, c in itertools.product(BLOCK_SIZES, CANDIDATES)
  ]


def get_surface(checkpoint: str = "") -> tuple[str, str, str]:
  del checkpoint
  return "decoder.block_size", "decoder.num_candidates", "tokens_per_second"
