"""Answers of several decoding methods to the same items, in turns: are they the same, and how fast?

Every item is answered by every method before the next one, in an order that rotates from item to
item, with the prompt's own forward run once for all. What is timed is the decoding loop of one item,
which ends with its answer: at a stop string, an EOS or the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from sbdjax import prompts as prompting
from sbdjax.bench import per_prompt
from sbdjax.bootstrap import Interval, paired_ratio, ratio_of_sums
from sbdjax.decode.base import Limits
from sbdjax.decode.generate import Result
from sbdjax.decode.method import Method
from sbdjax.errors import UsageError
from sbdjax.evals.tasks.task import Generation, Task, Template
from sbdjax.evals.until import Written, answer_text
from sbdjax.interop.pretrained import Pretrained

# What all others are compared with.
REFERENCE = "AR"


class Summary(NamedTuple):
  """A method over all items.

  Attributes:
    items: how many.
    same: answers whose tokens are those of the reference.
    tpf: tokens per forward, until the end of the answers.
    speedup: tokens per second over those of the reference.
    tokens_per_second: of the decoding loops, with an interval over items.
  """

  items: int
  same: int
  tpf: Interval
  speedup: Interval
  tokens_per_second: Interval


class Turns:
  """Methods compiled for the items of one task."""

  def __init__(
    self,
    model: Pretrained,
    methods: Mapping[str, Method],
    stop: Sequence[str],
    max_tokens: int,
    width: int,
  ):
    """For prompts of at most `width` tokens.

    Args:
      methods: by name; `REFERENCE` is one of them. They keep an exact cache.
      stop: strings that end an answer.

    Raises:
      UsageError: a method that keeps no exact cache.
    """
    stops = prompting.stops_of(model, stop)
    limits = Limits(max_tokens, tuple(model.generation.eos_ids), stops=stops)
    for name, method in methods.items():
      if method.cache_slots(width, limits) is None:
        raise UsageError(f"{name} keeps no exact cache, so its prompts cannot be run once for all")
    self._model, self._methods, self._stop = model, dict(methods), tuple(stop)
    self._limit, self._width = max_tokens, width
    self._decoder = per_prompt.PromptDecoder(model.need_lm(), model.params, limits, width)

  def answers(self, prompt: Sequence[int], first: int) -> dict[str, Written]:
    """What every method makes of a prompt, from method number `first` on; by name.

    Raises:
      UsageError: a prompt that is too long.
    """
    if len(prompt) > self._width:
      raise UsageError(f"a prompt has {len(prompt)} tokens, of at most {self._width}")
    names = list(self._methods)
    results: dict[str, Result] = {}
    kept, _ = self._decoder.prefill(self._methods[REFERENCE], prompt)
    for j in range(len(names)):
      name = names[(first + j) % len(names)]
      results[name] = self._decoder.run(self._methods[name], prompt, kept, jax.random.key(0))
    written = lambda result: Written(answer_text(self._model, result, self._stop), result)
    return {name: written(results[name]) for name in names}


def record_of(task: Task, item: Generation, answers: Mapping[str, Written]) -> dict[str, Any]:
  """One JSON object: what every method answered, what it is worth, and whether it is AR's."""
  reference = answers[REFERENCE].result.text_tokens
  runs = {}
  for name, written in answers.items():
    values = dict(task.score(item, written.text))
    same = written.result.text_tokens == reference
    runs[name] = written.details() | {"values": values, "same": same}
  return {"task": task.full_name, "id": item.id, "runs": runs}


def prompt_of(
  model: Pretrained, item: Generation, template: Template | None, multiturn: bool = True
) -> list[int]:
  """Token ids of what a model is asked."""
  context = item.prompt.context(template, multiturn)
  return prompting.encode(model.need_tokenizer(), context)


def summaries(records: Sequence[Mapping[str, Any]]) -> dict[str, Summary]:
  """Every method over all records, with intervals by bootstrap over items."""
  found = {}
  column = lambda name, field: [r["runs"][name][field] for r in records]
  reference = column(REFERENCE, "tokens"), column(REFERENCE, "seconds")
  for name in records[0]["runs"]:
    tokens, seconds = column(name, "tokens"), column(name, "seconds")
    found[name] = Summary(
      items=len(records),
      same=sum(column(name, "same")),
      tpf=ratio_of_sums(tokens, column(name, "nfe")),
      speedup=paired_ratio(tokens, seconds, *reference),
      tokens_per_second=ratio_of_sums(tokens, seconds),
    )
  return found
