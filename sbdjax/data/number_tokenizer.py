"""Tokens shown as their numbers, for a checkpoint that comes without a vocabulary."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from sbdjax.data.text_stream import ByteStream
from sbdjax.errors import UsageError


@dataclasses.dataclass
class NumberTokenizer:
  """Writes tokens as numbers and reads no text. See `tokenizers.Tokenizer`."""

  vocab_size: int
  mask_id: int | None = None
  origin: str | None = dataclasses.field(default=None, init=False, repr=False, compare=False)
  bos_id = None
  eos_id = None

  def encode(
    self, text: str, bos: bool = False, eos: bool = False, continues: bool = False
  ) -> list[int]:
    del text, bos, eos, continues
    raise UsageError(
      "this checkpoint has no tokenizer, so it cannot read text: give --prompt_tokens=[[1,2,3]]"
    )

  def encode_batch(self, texts: Sequence[str], continues: bool = False) -> list[np.ndarray]:
    return [np.array(self.encode(text)) for text in texts]

  def decode(self, ids: Sequence[int], show_mask: str = "") -> str:
    return "".join(show_mask if i == self.mask_id else f"{i} " for i in map(int, ids))

  def stream(self) -> ByteStream:
    return ByteStream(lambda _, token: self.decode([token]).encode())

  def token_bytes(self) -> list[bytes]:
    return [f"{i} ".encode() for i in range(self.vocab_size)]
