"""What a run says of itself before its first step."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping
from typing import Any

import jax

from sbdjax import memory
from sbdjax.nn.config import TransformerConfig

# Of env.json: what a person should know has changed. The command differs from start to start.
_ENVIRONMENT = ("git_commit", "git_modified", "packages", "python", "devices", "processes")


def count(number: float) -> str:
  """`135.2 M`: at most four digits and a unit."""
  for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
    if number >= size:
      return f"{number / size:.4g} {unit}"
  return f"{number:,.0f}"


def of_model(shape: TransformerConfig, params: Any, start: str, loss: str) -> str:
  """The network, how many parameters it has, and what it starts from.

  Args:
    params: arrays, or shapes.
    start: the checkpoint; empty: random parameters.
    loss: its name.
  """
  parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
  return (
    f"model: {count(parameters)} parameters, {_many(shape.num_layers, 'layer')} of width "
    f"{shape.d_model}, vocabulary {shape.vocab_size:,}, from {start or 'random parameters'}, "
    f"loss {loss}"
  )


def of_data(
  corpus: Any, held_out: Any, steps: int, rows: int, seq_len: int, rows_per_epoch: int
) -> list[str]:
  """What is read, and how often.

  Args:
    corpus: of training: a `Corpus`, or what else the rows of a source are built from (trajectories,
      packed rows, a mixture), which has an `origin` alone.
    held_out: that evaluations read, or None.
    steps, rows, seq_len: updates, rows of each, tokens of a row.
    rows_per_epoch: rows that are one pass over the data.
  """
  evaluated = ""
  if held_out is not None:
    evaluated = f"; evaluated on up to {_size(held_out)}"
  planned = steps * rows * seq_len
  passes = f", {steps * rows / rows_per_epoch:.3g} epochs" if rows_per_epoch else ""
  return [
    f"data: {_size(corpus)}{evaluated} ({corpus.origin})",
    f"plan: {_many(steps, 'step')} of {_many(rows, 'row')} of {seq_len} tokens: "
    f"{count(planned)} tokens{passes}",
  ]


def _size(corpus: Any) -> str:
  if not hasattr(corpus, "tokens"):
    return "rows"
  return f"{_many(len(corpus.lengths), 'document')} with {count(len(corpus.tokens))} tokens"


def _many(number: int, what: str) -> str:
  return f"{number:,} {what}{'s' * (number != 1)}"


def of_devices(state_bytes: int) -> str:
  """What computes, and what the state takes of its memory.

  Args:
    state_bytes: of parameters, their averages and the optimiser's state on one device.
  """
  kinds = collections.Counter(f"{d.platform}: {d.device_kind}" for d in jax.devices())
  devices = ", ".join(f"{n} x {kind}" if n > 1 else kind for kind, n in kinds.items())
  processes = f" of {jax.process_count()} processes" if jax.process_count() > 1 else ""
  free = memory.device()
  there = "" if free is None else f" of {memory.show(free)} free"
  state = f"state {memory.show(state_bytes)}{there}, activations not counted"
  return f"devices: {devices}{processes}; {state}"


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
  """Dotted names whose values differ, as `name = new (was old)`; nothing where there was none."""
  return [
    f"{name} = {now.get(name)} (was {before.get(name)})"
    for name in sorted(before.keys() | now.keys())
    if before and before.get(name) != now.get(name)
  ]


def of_interest(environment: Mapping[str, Any]) -> dict[str, Any]:
  """The part of env.json that a run's numbers may depend on."""
  return {name: environment[name] for name in _ENVIRONMENT if name in environment}
