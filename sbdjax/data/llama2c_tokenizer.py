"""Vocabularies of llama2.c (`tok512.bin` and its like), encoded exactly as its run.c does.

File: int32 max_token_length; then for each token float32 score, int32 length, bytes; little-endian.
Ids 0, 1, 2 are <unk>, BOS, EOS; ids 3..258 are the bytes <0x00>..<0xFF>.

Encoding starts from one token a UTF-8 character (after a dummy space), or its bytes where the
vocabulary lacks the character, and merges again and again the adjacent pair whose union has the
highest score, leftmost first. run.c rescans the whole text for each merge. Here a heap finds the
same pair, and the text is first cut before each run of spaces: where no token of the vocabulary has
a space after another character (checked at load), no merge can cross such a cut, so the parts do
not influence each other and equal parts are encoded once.
"""

import dataclasses
import functools
import heapq
import itertools
import pathlib
import re
import struct
from collections.abc import Sequence

import numpy as np

from sbdjax.data.text_stream import ByteStream
from sbdjax.errors import DataError
from sbdjax.foreign import regular

_BYTE_TOKEN = re.compile(rb"<0x([0-9A-Fa-f]{2})>")
_FIRST_BYTE_ID = 3
_WORD = re.compile(r" *[^ ]+| +")
_SPACE_INSIDE = re.compile(rb"[^ ] ")
_LOWEST_SCORE = -1e10  # run.c never merges below it.
_CACHED_WORDS = 1 << 17
_DEAD = -1


@dataclasses.dataclass
class Llama2cTokenizer:
  """A llama2.c vocabulary. See `tokenizers.Tokenizer`.

  Attributes:
    pieces: the bytes of each token, as in the file.
    scores: float32 merge priority of each token, higher first.
  """

  pieces: tuple[bytes, ...]
  scores: tuple[float, ...]
  mask_id: int | None = None
  origin: str | None = dataclasses.field(default=None, init=False, repr=False, compare=False)
  bos_id = 1
  eos_id = 2

  def __post_init__(self) -> None:
    # Of equal pieces the first counts; the files known have none.
    self._ids = {piece: i for i, piece in reversed(list(enumerate(self.pieces)))}
    if b" " not in self._ids or len(self.pieces) < _FIRST_BYTE_ID + 256:
      raise DataError(
        f"a vocabulary of {len(self.pieces)} tokens without a space or byte tokens is not "
        "llama2.c's: pass a tok*.bin written by its tokenizer.py"
      )
    self._words_are_separate = not any(map(_SPACE_INSIDE.search, self.pieces))
    self._encode_word = functools.lru_cache(_CACHED_WORDS)(self._encode_part)
    self._merged = functools.cache(self._find_merge)
    self._text = tuple(map(_text_of_piece, self.pieces))

  @classmethod
  def load(cls, path: str | pathlib.Path, mask_id: int | None = None) -> "Llama2cTokenizer":
    """Reads a vocabulary file.

    Raises:
      DataError: it cannot be read, is cut, or is something else.
    """
    try:
      pieces, scores = _parse(regular(path, DataError).read_bytes())
    except (OSError, struct.error, ValueError) as error:
      raise DataError(f"cannot read {path} as a llama2.c vocabulary: {error}") from error
    return cls(pieces, scores, mask_id)

  @property
  def vocab_size(self) -> int:
    return len(self.pieces)

  def encode(
    self, text: str, bos: bool = False, eos: bool = False, continues: bool = False
  ) -> list[int]:
    """As run.c's `encode`; `continues` leaves out the dummy space that it puts before a text."""
    ids = [self.bos_id] if bos else []
    if text:
      text = text if continues else " " + text
      if self._words_are_separate:
        ids.extend(itertools.chain.from_iterable(map(self._encode_word, _WORD.findall(text))))
      else:
        ids.extend(self._encode_part(text))
    return ids + [self.eos_id] * eos

  def encode_batch(self, texts: Sequence[str], continues: bool = False) -> list[np.ndarray]:
    return [np.array(self.encode(text, continues=continues), np.int32) for text in texts]

  def decode(self, ids: Sequence[int], show_mask: str = "") -> str:
    """As run.c prints: the space of a token right after BOS is dropped (and only there)."""
    stream = self.stream(show_mask)
    return "".join(map(stream.push, ids)) + stream.finish()

  def stream(self, show_mask: str = "") -> ByteStream:
    return ByteStream(functools.partial(self._piece_text, show_mask.encode()))

  def token_bytes(self) -> list[bytes]:
    return list(self._text)

  def _piece_text(self, mask_text: bytes, previous: int | None, token: int) -> bytes:
    if token == self.mask_id:
      return mask_text
    if not 0 <= token < len(self._text):
      return "\ufffd".encode()
    text = self._text[token]
    return text[1:] if previous == self.bos_id and text.startswith(b" ") else text

  def _encode_part(self, text: str) -> tuple[int, ...]:
    symbols = []
    for character in text:
      data = character.encode("utf-8", "surrogatepass")
      known = self._ids.get(data)
      symbols += [byte + _FIRST_BYTE_ID for byte in data] if known is None else [known]
    return tuple(self._merge(symbols))

  def _find_merge(self, left: int, right: int) -> tuple[float, int] | None:
    """(minus its score, its id) for the token that is `left` and `right` joined, if there is one."""
    token = self._ids.get(self.pieces[left] + self.pieces[right])
    if token is None or self.scores[token] <= _LOWEST_SCORE:
      return None
    return -self.scores[token], token

  def _merge(self, symbols: list[int]) -> list[int]:
    """Merges best score first, leftmost among equals; a heap entry is void once its pair is gone."""
    end = len(symbols)
    before, after = list(range(-1, end - 1)), list(range(1, end + 1))
    heap: list[tuple[float, int, int, tuple[int, int]]] = []

    def offer(left: int) -> None:
      if left >= 0 and after[left] < end:
        pair = symbols[left], symbols[after[left]]
        found = self._merged(*pair)
        if found is not None:
          heapq.heappush(heap, (found[0], left, found[1], pair))

    for left in range(end):
      offer(left)
    while heap:
      _, left, token, pair = heapq.heappop(heap)
      right = after[left]
      if right >= end or (symbols[left], symbols[right]) != pair:
        continue
      symbols[left], symbols[right] = token, _DEAD
      after[left] = after[right]
      if after[left] < end:
        before[after[left]] = left
      offer(before[left])
      offer(left)
    return [token for token in symbols if token != _DEAD]


def _text_of_piece(piece: bytes) -> bytes:
  """Bytes that a token stands for: its piece, one raw byte, or nothing for BOS and EOS."""
  byte = _BYTE_TOKEN.fullmatch(piece)
  if byte:
    return bytes([int(byte[1], 16)])
  return b"" if piece.strip() in (b"<s>", b"</s>") else piece


def _parse(data: bytes) -> tuple[tuple[bytes, ...], tuple[float, ...]]:
  (longest,) = struct.unpack_from("<i", data)
  pieces: list[bytes] = []
  scores: list[float] = []
  at = 4
  while at < len(data):
    score, length = struct.unpack_from("<fi", data, at)
    at += 8
    if not 0 <= length <= longest or at + length > len(data):
      raise ValueError(f"token {len(pieces)} has length {length}, which does not fit the file")
    pieces.append(data[at : at + length])
    scores.append(score)
    at += length
  return tuple(pieces), tuple(scores)


def vocabulary_file(pieces: Sequence[bytes], scores: Sequence[float]) -> bytes:
  """What a vocabulary file of these tokens holds."""
  tokens = zip(pieces, scores, strict=True)
  data = [struct.pack("<fi", score, len(piece)) + piece for piece, score in tokens]
  return struct.pack("<i", max(map(len, pieces))) + b"".join(data)
