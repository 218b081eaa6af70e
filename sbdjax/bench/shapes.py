"""Sizes of published models, for benchmarks with random weights."""

from __future__ import annotations

import re
from typing import Any

from sbdjax.errors import UsageError
from sbdjax.settings import nearest


def shape(
  vocab_size: int, num_layers: int, d_model: int, num_heads: int, num_kv_heads: int, d_ff: int
) -> dict[str, Any]:
  """Fields of TransformerConfig of a Llama with tied embeddings and 2,048 positions."""
  return dict(
    vocab_size=vocab_size,
    num_layers=num_layers,
    d_model=d_model,
    num_heads=num_heads,
    num_kv_heads=num_kv_heads,
    d_ff=d_ff,
    max_seq_len=2048,
  )


# llama2.c's stories260K, stories15M and stories110M, and SmolLM2-135M.
MODELS = {
  "260K": shape(512, 5, 64, 8, 4, 172),
  "15M": shape(32_000, 6, 288, 6, 6, 768),
  "110M": shape(32_000, 12, 768, 12, 12, 2048),
  "135M": shape(49_152, 30, 576, 9, 3, 1536),
}
_HEAD_DIMS = (64, 48, 32, 16, 8)


def named(text: str, flag: str) -> dict[str, Any]:
  """The shape that a user asks for.

  Args:
    text: a key of MODELS, or WIDTHxLAYERS or WIDTHxLAYERSxVOCABULARY, like 512x8: then with heads
      of 64 channels, or fewer where 64 does not divide the width, a feed-forward part 8/3 as wide,
      and 32,000 tokens.
    flag: its name in messages.

  Raises:
    UsageError: anything else.
  """
  if text in MODELS:
    return MODELS[text]
  found = re.fullmatch(r"(\d+)x(\d+)(?:x(\d+))?", text)
  width, layers, vocab_size = (int(n or 32_000) for n in found.groups()) if found else (0, 0, 0)
  head_dim = next((dh for dh in _HEAD_DIMS if width and width % dh == 0), 0)
  if not head_dim or not layers or vocab_size < 2:
    raise UsageError(
      f"{flag}={text}{nearest(text, MODELS)}: give one of {', '.join(MODELS)}, or WIDTHxLAYERS or "
      "WIDTHxLAYERSxVOCABULARY with a width that 8 divides, like 512x8"
    )
  heads = width // head_dim
  return shape(vocab_size, layers, width, heads, heads, -(-8 * width // 3 // 32) * 32)
