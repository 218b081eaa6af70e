"""The rows of the table: decoding methods of this package, and of `transformers`.

A row starts from a prompt that its engine has run but for the last token: so the prompt's own forward,
which is the same for all, is in no row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import points

from sbdjax.bench import per_prompt, torch_llama
from sbdjax.decode.base import Limits
from sbdjax.decode.causal.ar import AR
from sbdjax.decode.decoding import from_flat
from sbdjax.decode.kept import KeptText
from sbdjax.decode.method import Method
from sbdjax.interop.pretrained import Pretrained
from sbdjax.nn import adapter

_ALTERNATING = {"name": "sbd_verified", "block_size": 4, "drafting": "alternating"}
_WITH_LOOKUP = {**_ALTERNATING, "block_size": 3, "lookup_tokens": 2}
_NO_MASKS = {"name": "sbd_verified", "drafting": "none"}
# Settings by name; those with `lookup=ngrams` get the file of --table.
METHODS: dict[str, dict[str, Any]] = {
  "AR": {"name": "ar"},
  "Jacobi": {"name": "jacobi", "block_size": 4},
  "window + n-gram recycling": {
    "name": "jacobi_window", "block_size": 4, "pool": "ngrams", "n_gram": 4, "num_candidates": 3,
  },
  "prompt look-up of 4": {**_NO_MASKS, "lookup": "text", "lookup_tokens": 4},
  **{
    f"n-gram look-up of {n}": {
      **_NO_MASKS, "lookup": "ngrams", "lookup_tokens": n, "longest_match": 3, "table_tokens": n,
    }
    for n in (2, 4)
  },
  "n-gram look-up of 1 to 15": {**_NO_MASKS, "lookup": "ngrams"},
  "SBD, EB 0.1": {"name": "sbd", "block_size": 4, "gamma": 0.1},
  "SBD, EB 0.5": {"name": "sbd", "block_size": 4, "gamma": 0.5},
  "SBD, EB 1.5": {"name": "sbd", "block_size": 4, "gamma": 1.5},
  "verified, alternating": _ALTERNATING,
  "verified, alternating, second choices": {**_ALTERNATING, "candidates": True},
  "verified, alternating, blocks of 3 + look-up of 2": {**_WITH_LOOKUP, "lookup": "text"},
  "verified, alternating, blocks of 3 + n-grams of 2": {
    **_WITH_LOOKUP, "lookup": "ngrams", "longest_match": 3, "table_tokens": 2,
  },
  "verified, fused": {"name": "sbd_verified", "block_size": 4, "drafting": "fused"},
  "verified, fan-out 2": {
    "name": "sbd_verified", "block_size": 4, "drafting": "fan_out", "points": 2,
  },
}  # fmt: skip
# Methods that do not give AR's text.
LOSSY = ("sbd",)
# Options of its `generate`; ten drafts are transformers' own advice.
TRANSFORMERS: dict[str, dict[str, Any]] = {
  "transformers": {},
  "transformers, prompt look-up": {"prompt_lookup_num_tokens": 10},
}

# A text up to its end, and `points.FIELDS` of it.
Run = tuple[list[int], dict[str, Any]]


class Engine(Protocol):
  """What keeps a prompt."""

  def prefill(self, prompt: list[int]) -> tuple[Any, float]:
    """What is kept of all tokens but the last, and the seconds."""
    ...


class Row(NamedTuple):
  """A decoding method with its engine.

  Attributes:
    settings: that the record names.
    engine: whose kept prompt `run` takes.
    run: (prompt, kept) -> the text and its numbers.
  """

  settings: dict[str, Any]
  engine: Engine
  run: Callable[[list[int], Any], Run]


class SbdjaxEngine:
  """This package, with one set of weights in one precision."""

  def __init__(self, model: Pretrained, max_tokens: int, longest: int):
    limits = Limits(max_tokens, tuple(model.generation.eos_ids))
    self.decoder = per_prompt.PromptDecoder(model.need_lm(), model.params, limits, longest)

  def prefill(self, prompt: list[int]) -> tuple[KeptText, float]:
    return self.decoder.prefill(AR(), prompt)

  def row(self, settings: dict[str, Any]) -> Row:
    method = from_flat(settings).method
    return Row(settings, self, functools.partial(self._run, method))

  def _run(self, method: Method, prompt: list[int], kept: KeptText) -> Run:
    result = self.decoder.run(method, prompt, kept, jax.random.key(0))
    return result.text_tokens, {field: getattr(result, field) for field in points.FIELDS}


class TransformersEngine:
  """`transformers` with the same weights in float32, without the adapter.

  It runs the whole prompt and its first token comes with that forward: both are taken off. A cache
  given to its `generate` would save that, but its prompt look-up then writes other texts (5.24).
  """

  def __init__(self, model: Pretrained, max_tokens: int, threads: int):
    import torch

    torch.set_num_threads(threads)
    llama = torch_llama.make_llama(model.need_lm().config, adapter.split(model.params)[0])
    self._generate = functools.partial(torch_llama.generate, llama)
    self._max_tokens, self._eos_ids = max_tokens, tuple(model.generation.eos_ids)

  def prefill(self, prompt: list[int]) -> tuple[torch_llama.Generated, float]:
    first = self._generate([prompt], 1)
    return first, first.seconds

  def row(self, options: dict[str, Any]) -> Row:
    run = functools.partial(self._run, options)
    return Row({"name": "transformers"} | options, self, run)

  def _run(self, options: dict[str, Any], prompt: list[int], first: torch_llama.Generated) -> Run:
    whole = self._generate([prompt], self._max_tokens, self._eos_ids, **options)
    (tokens,) = whole.tokens
    share = len(tokens) / max(1, len(tokens) - 1)
    run = {
      "valid": len(tokens),
      "nfe": max(1, whole.forwards - first.forwards) * share,
      "query_tokens": (whole.query_tokens - first.query_tokens) * share,
      "drafted": None,  # not told
      "accepted": None,
      "seconds": max(1e-9, whole.seconds - first.seconds) * share,
    }
    return tokens, run


def methods_of(wanted: Sequence[str], table: str) -> dict[str, dict[str, Any]]:
  """Settings of AR and of `wanted`; where that is empty, of all methods that need no more than `table`.

  Raises:
    ValueError: a method is unknown, or drafts from a table and there is none.
  """
  if unknown := set(wanted) - set(METHODS):
    raise ValueError(f"no methods {sorted(unknown)}; there are {list(METHODS)}")
  reads = [name for name in METHODS if METHODS[name].get("lookup") == "ngrams"]
  if not table and (lacking := [name for name in wanted if name in reads]):
    raise ValueError(f"{lacking} draft from n-grams: give their --table")
  names = dict.fromkeys(["AR", *(wanted or METHODS)])
  more = {"lookup_table": table}
  return {
    name: METHODS[name] | (more if name in reads else {})
    for name in names
    if table or name not in reads
  }
