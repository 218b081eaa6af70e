"""Tokenizers of checkpoints without a tokenizer.json: Qwen2's BPE files and ESM's vocab.txt."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from sbdjax.errors import DataError

# Classes (tokenizer_config.json) whose vocab.json and merges.txt are cut up as Qwen2's are.
QWEN2_CLASSES = ("Qwen2Tokenizer", "DreamTokenizer")
# The alphabet of ESM-1b and ESM-2 (facebookresearch/esm): token i has id i.
ESM_ALPHABET = (
  *("<cls>", "<pad>", "<eos>", "<unk>"),
  *"LAGVSERTIDPKQNFYMHWCXBUZO.-",
  *("<null_1>", "<mask>"),
)
# How Qwen2 cuts text before the merges: contractions, words with one leading sign, single digits,
# signs, line ends, spaces.
_QWEN2_WORDS = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
  r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def qwen2(
  vocab: pathlib.Path, merges: pathlib.Path, settings: Mapping[str, Any]
) -> tokenizers.Tokenizer:
  """Qwen2's tokenizer, with the added tokens that `settings` (tokenizer_config.json) lists.

  Raises:
    DataError: unreadable files, or added tokens that do not follow the vocabulary.
  """
  try:
    library = tokenizers.Tokenizer(models.BPE.from_file(str(vocab), str(merges)))
  except Exception as error:  # The library raises bare Exception.
    raise DataError(f"cannot read {vocab} and {merges} as Qwen2's tokenizer: {error}") from error
  library.normalizer = normalizers.NFC()
  library.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split(tokenizers.Regex(_QWEN2_WORDS), "isolated"),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
  )
  library.decoder = decoders.ByteLevel()
  try:
    listed = {int(i): x for i, x in settings.get("added_tokens_decoder", {}).items()}
    added = {i: _added(x) for i, x in sorted(listed.items())}
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise DataError(f"{vocab.parent}: added_tokens_decoder cannot be read: {error}") from error
  for i, token in added.items():
    library.add_tokens([token])
    if library.token_to_id(token.content) != i:
      raise DataError(
        f"{vocab.parent}: added token {token.content!r} should get id {i}, which does not follow "
        "the vocabulary"
      )
  return library


def _added(x: Mapping[str, Any]) -> tokenizers.AddedToken:
  flags = {k: bool(x.get(k, False)) for k in ("single_word", "lstrip", "rstrip", "normalized")}
  return tokenizers.AddedToken(x["content"], special=bool(x.get("special", False)), **flags)


def esm(vocab: pathlib.Path) -> tokenizers.Tokenizer | None:
  """ESM's tokenizer, one token per residue, or None where `vocab` is another kind of vocab.txt.

  Raises:
    DataError: it cannot be read.
  """
  try:
    tokens = vocab.read_text("utf-8").split()
  except (OSError, ValueError) as error:
    raise DataError(f"cannot read {vocab}: {error}") from error
  return esm_library(tokens) if {"<cls>", "<eos>", "<mask>", "<unk>"} <= set(tokens) else None


def esm_library(tokens: Sequence[str]) -> tokenizers.Tokenizer:
  """A tokenizer of single residues from its tokens in the order of their ids."""
  ids = {token: i for i, token in enumerate(tokens)}
  library = tokenizers.Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
  known = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True)))
  library.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.WhitespaceSplit(),
      pre_tokenizers.Split(tokenizers.Regex(known), "isolated"),  # the rest is one <unk> a stretch
    ]
  )
  library.decoder = decoders.Fuse()
  library.add_special_tokens([token for token in tokens if token.startswith("<")])
  return library
