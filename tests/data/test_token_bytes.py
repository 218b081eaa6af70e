"""The bytes of tokens: joined, they are the text that the tokenizer decodes."""

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from sbdjax.data import number_tokenizer
from sbdjax.data.bpe_tokenizer import LibraryTokenizer
from sbdjax.data.tokenizers import load_tokenizer
from sbdjax.errors import UsageError
from sbdjax.interop.smollm2 import path as smollm2_path


def byte_level():
  library = tokenizers.Tokenizer(models.BPE())
  library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  library.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=400,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    special_tokens=["<s>", "</s>"],
  )
  library.train_from_iterator(["one two\n\n three", "über den Öfen", "数 3"], trainer)
  library.add_tokens(["<tool call>"])
  return LibraryTokenizer(library, bos_id=0, eos_id=1)


def sentencepiece():
  words = [
    "<unk>",
    "<s>",
    "</s>",
    "▁the",
    "▁",
    "a",
    "b",
    "ab",
    "\n",
    *(f"<0x{i:02X}>" for i in range(256)),
  ]
  vocab = {word: i for i, word in enumerate(words)}
  library = tokenizers.Tokenizer(
    models.BPE(vocab, [("a", "b")], unk_token="<unk>", byte_fallback=True)
  )
  library.decoder = decoders.Sequence(
    [
      decoders.Replace("▁", " "),
      decoders.ByteFallback(),
      decoders.Fuse(),
      decoders.Strip(" ", 1, 0),
    ]
  )
  library.add_special_tokens(["<s>", "</s>", "<unk>"])
  return LibraryTokenizer(library, bos_id=1, eos_id=2)


MADE = {
  "byte-level": byte_level,
  "sentencepiece": sentencepiece,
  "llama2.c": lambda: load_tokenizer("tok512"),
  "text8": lambda: load_tokenizer("text8"),
  "numbers": lambda: number_tokenizer.NumberTokenizer(40),
  "esm": lambda: load_tokenizer("esm"),
}


@pytest.mark.parametrize("name", MADE)
def test_joined_bytes_are_the_decoded_text(name):
  tokenizer, rng = MADE[name](), np.random.default_rng(0)
  pieces = tokenizer.token_bytes()
  assert len(pieces) == tokenizer.vocab_size
  # A text's first token may lose its space.
  start = pieces.index(b"a") if b"a" in pieces else 5
  for _ in range(300):
    ids = [start, *rng.integers(0, tokenizer.vocab_size, 8).tolist()]
    if name == "llama2.c":  # a space goes after bos wherever that stands
      ids = [i for i in ids if i != tokenizer.bos_id]
    text = b"".join(pieces[i] for i in ids).decode("utf-8", "replace")
    if name == "sentencepiece" and "\ufffd" in text:
      continue  # a run of bytes that is not UTF-8 is lost as a whole
    assert tokenizer.decode(ids).replace("\ufffd", "") == text.replace("\ufffd", "")


def test_a_real_vocabulary():
  if not smollm2_path().is_file():
    pytest.skip("smollm2-135m is not installed")
  tokenizer = load_tokenizer(str(smollm2_path()))
  text = "Question: 1 + 1?\n\n  Ünïcode 数\tdef f(x):\n    return x"
  pieces = tokenizer.token_bytes()
  assert b"".join(pieces[i] for i in tokenizer.encode(text)).decode() == text
  assert pieces[tokenizer.eos_id] == b""


def test_tokens_that_depend_on_their_neighbours_are_refused():
  library = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
  library.decoder = decoders.WordPiece()
  with pytest.raises(UsageError, match="WordPiece.*stop strings"):
    LibraryTokenizer(library).token_bytes()
