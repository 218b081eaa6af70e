"""The bytes that a token of the `tokenizers` library stands for, as its decoder has them."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from sbdjax.errors import UsageError

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# What these do depends on one token alone; Strip acts at a text's start.
_ONE_BY_ONE = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


def reader(decoder: Any) -> Callable[[str], bytes]:
  """(a token's text in the vocabulary) -> the bytes it adds to a text.

  Args:
    decoder: of a `tokenizers.Tokenizer`.

  Raises:
    UsageError: what a token adds depends on its neighbours, or the decoder is an unknown one.
  """
  parts = list(_parts(json.loads(decoder.__getstate__()))) if decoder is not None else []
  kinds = {part["type"] for part in parts}
  if kinds == {"ByteLevel"}:
    return _byte_level
  if not parts or not kinds <= _ONE_BY_ONE:
    raise UsageError(
      f"this tokenizer's texts are put together by {', '.join(sorted(kinds)) or 'no decoder'}: the "
      "bytes of a token, which stop strings need, are known for byte-level and SentencePiece "
      "vocabularies"
    )
  replaced = [_replacement(part) for part in parts if part["type"] in ("Replace", "Metaspace")]
  raw_bytes = "ByteFallback" in kinds

  def read(text: str) -> bytes:
    byte = _BYTE.fullmatch(text) if raw_bytes else None
    if byte:
      return bytes([int(byte[1], 16)])
    for old, new in replaced:
      text = text.replace(old, new)
    return text.encode()

  return read


def _parts(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
  if state["type"] != "Sequence":
    yield state
  for part in state.get("decoders", ()):
    yield from _parts(part)


def _replacement(part: dict[str, Any]) -> tuple[str, str]:
  if part["type"] == "Metaspace":
    return part["replacement"], " "
  return part["pattern"].get("String", ""), part["content"]


def _byte_level(text: str) -> bytes:
  """GPT-2's characters as the bytes they stand for; a text with any other is itself."""
  known = _bytes_of_characters()
  if all(character in known for character in text):
    return bytes(known[character] for character in text)
  return text.encode()


@functools.cache
def _bytes_of_characters() -> dict[str, int]:
  """GPT-2's table: printable Latin-1 characters are their bytes, the others follow from U+0100."""
  printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
  others = [byte for byte in range(256) if byte not in set(printable)]
  table = {chr(byte): byte for byte in printable}
  return table | {chr(0x100 + i): byte for i, byte in enumerate(others)}
