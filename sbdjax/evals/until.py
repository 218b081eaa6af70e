"""Answers that end at stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax

from sbdjax import prompts as prompting
from sbdjax.decode.decoding import Decoding
from sbdjax.decode.generate import Decoder, Result
from sbdjax.interop.pretrained import Pretrained


class Written(NamedTuple):
  """One answer.

  Attributes:
    text: up to the first stop string, which is no part of it, or to what ends a text.
    result: of the decoder; it may have gone on after the stop string.
  """

  text: str
  result: Result


def cut(text: str, stop: Sequence[str]) -> str:
  """`text` before the first of the strings in it."""
  places = (text.find(s) for s in stop if s)
  return text[: min((at for at in places if at >= 0), default=len(text))]


def generate_until(
  model: Pretrained,
  decoding: Decoding,
  prompts: Sequence[Sequence[int]],
  stop: Sequence[Sequence[str]],
  max_tokens: Sequence[int],
  *,
  seed: int = 0,
  batch_size: int = 16,
) -> list[Written]:
  """Continues prompts, each until one of its stop strings, a text's end, or its own limit.

  Texts are cut here, after they were decoded to their limits.

  Args:
    decoding: the method, as of `Decoding.for_model`; its limit is not used.
    prompts: token ids.
    stop: strings, of each prompt.
    max_tokens: of each prompt.

  Raises:
    UsageError: a prompt the model cannot continue by so many tokens.
  """
  longest = Decoding(decoding.method, max(max_tokens))
  prompting.check(prompts, model, longest)
  decoder = Decoder(model.lm, longest.limits(model.generation.eos_ids))
  ids = [list(p) for p in prompts]
  key = jax.random.key(seed)
  results = decoder.generate(
    decoding.method, model.params, ids, key, batch_size, max_tokens=list(max_tokens)
  )
  return [
    Written(cut(_text(model, result), strings), result)
    for result, strings in zip(results, stop, strict=True)
  ]


def _text(model: Pretrained, result: Result) -> str:
  tokens = result.text_tokens
  kept = tokens[:-1] if tokens and tokens[-1] in model.generation.eos_ids else tokens
  return prompting.text_after(model.need_tokenizer(), result.prompt_tokens, kept)
