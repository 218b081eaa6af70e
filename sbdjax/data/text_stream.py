"""Incremental UTF-8: bytes of tokens in, whole characters out."""

import codecs
from collections.abc import Callable


class ByteStream:
  """A `TokenStream` for tokenizers whose tokens are byte strings.

  `piece(previous, token)` gives the bytes of `token` after `previous` (None at the start).
  """

  def __init__(self, piece: Callable[[int | None, int], bytes]):
    self._piece = piece
    self._previous: int | None = None
    self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

  def push(self, token: int) -> str:
    text = self._decoder.decode(self._piece(self._previous, int(token)))
    self._previous = int(token)
    return text

  def finish(self) -> str:
    return self._decoder.decode(b"", final=True)
