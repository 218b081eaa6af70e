"""llama2.c vocabularies against a plain re-statement of the algorithm that run.c documents."""

import lzma
import random
import struct

import pytest

from sbdjax.data import assets
from sbdjax.data.llama2c_tokenizer import Llama2cTokenizer, vocabulary_file
from sbdjax.data.tokenizers import load_tokenizer
from sbdjax.errors import DataError
from tests.helpers import require_shared


def naive_encode(pieces, scores, text, bos=False, eos=False):
  """Dummy space, characters or bytes, then rescan everything for each merge."""
  lookup = {}
  for i, piece in enumerate(pieces):
    lookup.setdefault(piece, i)
  ids = [1] if bos else []
  if text:
    ids.append(lookup[b" "])
  for character in text:
    data = character.encode()
    ids += [lookup[data]] if data in lookup else [byte + 3 for byte in data]
  while True:
    best_score, best_at = -1e10, -1
    for i in range(len(ids) - 1):
      merged = lookup.get(pieces[ids[i]] + pieces[ids[i + 1]])
      if merged is not None and scores[merged] > best_score:
        best_score, best_at = scores[merged], i
    if best_at < 0:
      return ids + [2] * eos
    ids[best_at : best_at + 2] = [lookup[pieces[ids[best_at]] + pieces[ids[best_at + 1]]]]


def write_vocabulary(path, pieces, scores):
  data = struct.pack("<i", max(map(len, pieces)))
  for piece, score in zip(pieces, scores, strict=True):
    data += struct.pack("<fi", score, len(piece)) + piece
  path.write_bytes(data)
  return path


def vocabulary_of(extra, scores):
  pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % i for i in range(256)), *extra]
  return pieces, [0.0] * 259 + list(scores)


@pytest.fixture(scope="module")
def tok512():
  return load_tokenizer("tok512")


def test_a_vocabulary_is_written_as_it_was_read(tok512):
  found = vocabulary_file(tok512.pieces, tok512.scores)
  assert found == assets.path("tok512.bin").read_bytes()


def test_embedded_vocabulary_is_the_published_one(tok512):
  assert tok512.vocab_size == 512
  assert (tok512.bos_id, tok512.eos_id, tok512.mask_id) == (1, 2, None)
  assert tok512.encode("Once upon a time", bos=True) == [1, 403, 407, 261, 378]
  assert assets.path("tok512.bin").read_bytes() == (
    require_shared("data", "stories260K", "tok512.bin").read_bytes()
  )


def test_encoding_equals_the_rescanning_algorithm_on_stories(tok512):
  text = lzma.open(assets.path("stories_valid.txt.xz"), "rt", encoding="utf-8").read()
  for story in text.split("<|endoftext|>")[:12]:
    story = story.strip()
    expected = naive_encode(tok512.pieces, tok512.scores, story, bos=True, eos=True)
    assert tok512.encode(story, bos=True, eos=True) == expected


def test_encoding_equals_the_rescanning_algorithm_on_hard_text(tok512):
  rng = random.Random(0)
  alphabet = "   theandTsw\n\t“”é€ñ日😀<0x41>\u00a0"
  texts = ["", " ", "   ", "a", " a ", "<s>", "<0x41>", "\n<s>\n", "the the  the   the", "é" * 9]
  texts += ["".join(rng.choices(alphabet, k=rng.randrange(1, 60))) for _ in range(150)]
  for text in texts:
    assert tok512.encode(text) == naive_encode(tok512.pieces, tok512.scores, text), repr(text)


@pytest.mark.parametrize("inner_space", [False, True])
def test_any_vocabulary_with_ties_and_spaces(tmp_path, inner_space):
  """Tokens such as "a b" forbid cutting the text at spaces; equal scores merge leftmost first."""
  rng = random.Random(1)
  singles = [b" ", b"a", b"b"]
  alphabet = " ab" if inner_space else "ab"
  for trial in range(25):
    extra = {"".join(rng.choices(alphabet, k=rng.randrange(2, 5))).encode() for _ in range(12)}
    extra |= {b"  ", b" a", b" b"}
    if not inner_space:
      assert all(piece.rfind(b" ") <= 1 for piece in extra)
    pieces, scores = vocabulary_of(
      singles + sorted(extra), [rng.randrange(-3, 1) for _ in range(3 + len(extra))]
    )
    tokenizer = load_tokenizer(str(write_vocabulary(tmp_path / f"{trial}.bin", pieces, scores)))
    for _ in range(20):
      text = "".join(rng.choices("  ab", k=rng.randrange(1, 30)))
      assert tokenizer.encode(text) == naive_encode(pieces, scores, text), (extra, text)


def test_decode_gives_the_text_back(tok512):
  text = 'Tim said, "Olé 😀!"\n\nThe  end.'
  ids = tok512.encode(text, bos=True, eos=True)
  assert tok512.decode(ids) == text
  # run.c drops the leading space of a piece after BOS only.
  assert tok512.decode(ids[1:]) == " " + text


def test_continuation_has_no_dummy_space(tok512):
  prompt, rest = "Once upon a time", ", there was a girl"
  ids = tok512.encode(prompt, bos=True) + tok512.encode(rest, continues=True)
  assert tok512.decode(ids) == prompt + rest


def test_stream_holds_back_unfinished_characters(tok512):
  ids = tok512.encode("a 😀b", bos=True)
  stream = tok512.stream()
  parts = [stream.push(i) for i in ids]
  assert "".join(parts) == "a 😀b"
  assert "" in parts[1:] and "\ufffd" not in "".join(parts)
  cut = tok512.stream()
  text = "".join(map(cut.push, ids[:-2]))
  assert text == "a " and cut.finish() == "\ufffd"


def test_mask_and_unknown_ids(tok512):
  masked = load_tokenizer("tok512", mask_id=512)
  ids = masked.encode("a girl", bos=True)
  assert masked.decode([*ids, 512, 512]) == "a girl"
  assert masked.decode([*ids, 512, 512], show_mask="▒") == "a girl▒▒"
  assert tok512.decode([*ids, 512, -1]) == "a girl\ufffd\ufffd"


@pytest.mark.parametrize(
  "damage",
  [lambda d: d[:-1], lambda d: b"", lambda d: b"not a vocabulary", lambda d: d[:2000]],
  ids=["cut", "empty", "foreign", "few"],
)
def test_damaged_files_are_data_errors(tmp_path, damage):
  path = tmp_path / "tok.bin"
  path.write_bytes(damage(assets.path("tok512.bin").read_bytes()))
  with pytest.raises(DataError) as error:
    Llama2cTokenizer.load(path)
  assert "\n" not in str(error.value)
