"""text8's alphabet: a space is 0, a to z are 1 to 26."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from sbdjax.data.text_stream import ByteStream
from sbdjax.errors import DataError, UsageError

ALPHABET = " abcdefghijklmnopqrstuvwxyz"
_UNKNOWN = 255
_ID_OF_BYTE = np.full(256, _UNKNOWN, np.uint8)
_ID_OF_BYTE[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET))


@dataclasses.dataclass
class Text8Tokenizer:
  """One token per character, 27 characters, no bos and no eos. See `tokenizers.Tokenizer`."""

  mask_id: int | None = None
  origin: str | None = dataclasses.field(default=None, init=False, repr=False, compare=False)
  vocab_size = len(ALPHABET)
  bos_id = None
  eos_id = None

  def encode(
    self, text: str, bos: bool = False, eos: bool = False, continues: bool = False
  ) -> list[int]:
    del continues  # A character does not depend on what comes before.
    if bos or eos:
      raise UsageError("the text8 tokenizer has no bos or eos token: set add_bos and add_eos False")
    return self.encode_batch([text])[0].tolist()

  def encode_batch(self, texts: Sequence[str], continues: bool = False) -> list[np.ndarray]:
    """uint8 arrays: a corpus of 10^8 characters takes 10^8 bytes."""
    del continues
    return [_encode(text) for text in texts]

  def decode(self, ids: Sequence[int], show_mask: str = "") -> str:
    return "".join(show_mask if i == self.mask_id else _character(i) for i in map(int, ids))

  def stream(self) -> ByteStream:
    return ByteStream(lambda _, token: self.decode([token]).encode())

  def token_bytes(self) -> list[bytes]:
    return [character.encode() for character in ALPHABET]


def _character(token: int) -> str:
  return ALPHABET[token] if 0 <= token < len(ALPHABET) else "\ufffd"


def _encode(text: str) -> np.ndarray:
  # One byte a character whatever the text holds ("?" is not in the alphabet), so offsets stay right.
  ids = _ID_OF_BYTE[np.frombuffer(text.encode("ascii", "replace"), np.uint8)]
  wrong = np.flatnonzero(ids == _UNKNOWN) if ids.size and ids.max() == _UNKNOWN else ids[:0]
  if wrong.size:
    at = int(wrong[0])
    raise DataError(
      f"not text8: character {text[at]!r} at offset {at} is outside of its alphabet "
      "(space and a-z); clean the text or choose another tokenizer"
    )
  return ids
