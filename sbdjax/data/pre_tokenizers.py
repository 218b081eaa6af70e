"""How texts are cut before BPE merges, by the names llama.cpp gave to it (`tokenizer.ggml.pre`).

The expressions are facts of the vocabularies: those of their tokenizer.json, as listed beside each
name in llama.cpp's src/llama-vocab.cpp. Cuts that are code there (kimi-k2, afmoe, superbpe) and
vocabularies on plain UTF-8 (gemma4, sarvam-moe, whitespace) are left out.
"""

from __future__ import annotations

from typing import NamedTuple

import tokenizers
from tokenizers import pre_tokenizers

_S = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"  # English contractions
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"  # a word with one leading sign
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SIGNS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_CASED = (rf"{_LEAD}{_UPPER}*{_LOWER}+", rf"{_LEAD}{_UPPER}+{_LOWER}*")  # camelCase is cut
_ASCII_SIGN_WORD = (
  r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
)
_CJK = "[一-龥぀-ゟ゠-ヿ]+"
_NO_PUNCTUATION = r" ?[^(\s|.,!?…。，、।۔،)]+"
_DOUBLING = "".join(rf"\s{{{n}}}(?!\S)|" for n in (512, 256, 128, 64, 32, 16, 8, 4))

_GPT2 = (
  r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
)  # fmt: skip
_STARCODER = (r"\p{N}", *_GPT2)
_QWEN2 = (rf"{_S}|{_WORD}|\p{{N}}|{_SIGNS}|{_SPACES}",)
_LLAMA3 = (rf"{_S}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}",)
_TEKKEN = (rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_SIGNS_SLASH}|{_SPACES}",)
_GPT4O = (rf"{_CASED[0]}{_S}?|{_CASED[1]}{_S}?|\p{{N}}{{1,3}}|{_SIGNS_SLASH}|{_SPACES}",)


class Cut(NamedTuple):
  """How one kind of vocabulary cuts texts.

  Attributes:
    patterns: each cuts the pieces of the one before into its matches and what lies between them.
    ignore_merges: a piece that is a token as a whole is that token.
    bos: texts begin with the bos token where the file does not say.
    nfc: texts are normalized to NFC before.
  """

  patterns: tuple[str, ...]
  ignore_merges: bool = False
  bos: bool = False
  nfc: bool = False


def _named(cut: Cut, *names: str) -> dict[str, Cut]:
  return dict.fromkeys(names, cut)


CUTS: dict[str, Cut] = {
  "default": Cut(
    (
      r"[\p{P}\$\+<=>\^~\|]+",
      r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
      r"\p{N}+",
      "[0-9][0-9][0-9]",
    )
  ),
  **_named(
    Cut(_GPT2),
    *("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "gigachat"),
    *("a.x-4.0", "mellum", "exaone4"),
  ),
  **_named(
    Cut(_STARCODER),
    *("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
  ),
  **_named(
    Cut(_LLAMA3, ignore_merges=True, bos=True),
    *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
  ),
  **_named(Cut(_LLAMA3), "dbrx", "smaug-bpe", "chatglm-bpe", "glm4"),
  "qwen2": Cut(_QWEN2, nfc=True),  # as its tokenizer.json says; llama.cpp leaves texts as they are
  **_named(
    Cut(_QWEN2),
    *("deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open"),
    "grok-2",
  ),
  "qwen35": Cut(
    (
      rf"{_S}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
      rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
    )
  ),
  "tekken": Cut(_TEKKEN, ignore_merges=True, bos=True),
  **_named(Cut(_GPT4O), "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
  **_named(
    Cut(
      (
        r"\p{N}{1,3}",
        _CJK,
        rf"{_ASCII_SIGN_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
      )
    ),
    *("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"),
  ),
  "deepseek-coder": Cut(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
  "falcon": Cut(
    (
      r"[\p{P}\$\+<=>\^~\|`]+",
      r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
      "[0-9][0-9][0-9]",
    )
  ),
  **_named(Cut((_NO_PUNCTUATION,)), "poro-chat", "bloom", "gpt3-finnish"),
  "viking": Cut((_NO_PUNCTUATION, r"\p{N}")),
  "jais-2": Cut(
    (rf"{_S}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|\s*[\r\n]+|{_DOUBLING}\s{{1,2}}(?!\S)|\s{{1}}",)
  ),  # fmt: skip
  "seed-coder": Cut((rf"{_S}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)),
  **_named(
    Cut(
      (
        rf"'(?i:[sdmt]|ll|ve|re)|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+",
      )
    ),
    *("bailingmoe", "bailingmoe2", "llada-moe"),
  ),
  "minicpm5": Cut(
    (r"\p{N}{1,3}", rf"{_S}|{_WORD}|\p{{N}}+|{_SIGNS}|{_SPACES}"), ignore_merges=True
  ),
}


def pre_tokenizer(cut: Cut) -> pre_tokenizers.PreTokenizer:
  """The cut, then bytes written as GPT-2 writes them."""
  splits = [pre_tokenizers.Split(tokenizers.Regex(p), "isolated") for p in cut.patterns]
  return pre_tokenizers.Sequence(
    [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
  )
