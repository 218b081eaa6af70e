"""Decoding settings by name: from a `DecoderConfig` to a sampler.

A new method or reveal rule is one entry of METHODS or RULES. Each entry says which settings it
reads, so that a setting without effect is an error instead of a surprise, and so that a recorded
point of a sweep holds what mattered and nothing else.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax

from sbdjax.cli.common import nearest, to_dataclass
from sbdjax.cli.flags import parse_fields
from sbdjax.decode import ar, sampling, sbd, select
from sbdjax.decode.base import Limits, Sampler
from sbdjax.decode.select import Rule
from sbdjax.errors import UsageError
from sbdjax.lm import LM

# Settings handed to the compiled program as numbers: changing them compiles nothing.
TRACED = ("gamma", "f", "tau", "tokens_per_step")
Numbers = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
  """How to decode.

  Attributes:
    name: the method, a key of METHODS.
    max_tokens: largest number of generated tokens of a prompt.
    temperature: 0 is greedy, otherwise tokens are drawn from softmax(logits / temperature).
    top_k: draw from the `top_k` most probable tokens only; 0: from all.
    top_p: draw from the smallest set of tokens with this mass; 1: from all.
    block_size: k, tokens of a block (sbd).
    rule: which masked positions a forward reveals, a key of RULES (sbd).
    gamma: entropy bound in nats (rules eb_entropy, eb_confidence, eb_margin, entropy_threshold).
    f: of the rule factor.
    tau: smallest confidence of the rule confidence_threshold.
    tokens_per_step: positions a forward of the rule top_k.
    score: what the rule top_k sorts by, a key of `select.SCORES`.
  """

  name: str = "ar"
  max_tokens: int = 200
  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  block_size: int = 16
  rule: str = "eb_entropy"
  gamma: float = 0.1
  f: float = 1.0
  tau: float = 0.9
  tokens_per_step: int = 1
  score: str = "confidence"

  def __post_init__(self):
    choices = {"name": METHODS, "rule": RULES, "score": select.SCORES}
    for field, known in choices.items():
      value = getattr(self, field)
      if value not in known:
        raise UsageError(
          f"decoder.{field}={value!r}{nearest(value, known)}: choose one of {', '.join(known)}"
        )
    for field in ("max_tokens", "block_size", "tokens_per_step"):
      if getattr(self, field) < 1:
        raise UsageError(f"decoder.{field}={getattr(self, field)} must be at least 1")
    for field in ("gamma", "f", "tau"):
      if not getattr(self, field) >= 0:  # NaN fails too
        raise UsageError(f"decoder.{field}={getattr(self, field)} must not be negative")
    sampling.make_choice(self.temperature, self.top_k, self.top_p)


class RuleChoice(NamedTuple):
  """A reveal rule by name.

  Attributes:
    reads: fields of DecoderConfig it depends on.
    build: (config, numbers) -> Rule; `numbers` has the possibly traced values of TRACED.
  """

  reads: tuple[str, ...]
  build: Callable[[DecoderConfig, Numbers], Rule]


RULES: dict[str, RuleChoice] = {
  "eb_entropy": RuleChoice(("gamma",), lambda _, n: select.eb_entropy(n["gamma"])),
  "eb_confidence": RuleChoice(("gamma",), lambda _, n: select.eb_confidence(n["gamma"])),
  "eb_margin": RuleChoice(("gamma",), lambda _, n: select.eb_margin(n["gamma"])),
  "factor": RuleChoice(("f",), lambda _, n: select.factor(n["f"])),
  "confidence_threshold": RuleChoice(("tau",), lambda _, n: select.confidence_threshold(n["tau"])),
  "entropy_threshold": RuleChoice(("gamma",), lambda _, n: select.entropy_threshold(n["gamma"])),
  "top_k": RuleChoice(
    ("tokens_per_step", "score"),
    lambda config, n: select.top_k(n["tokens_per_step"], select.SCORES[config.score]),
  ),
}


class Canvas(NamedTuple):
  """The tokens a method is working on, for display: int32 [B] first index, and how many."""

  start_B: jax.Array
  size: int


class Method(NamedTuple):
  """A decoding method by name.

  Attributes:
    reads: config -> fields it depends on, beyond those all methods read.
    build: (lm, limits, config, numbers) -> Sampler.
    canvas: (state, config) -> Canvas.
  """

  reads: Callable[[DecoderConfig], tuple[str, ...]]
  build: Callable[[LM, Limits, DecoderConfig, Numbers], Sampler]
  canvas: Callable[[Any, DecoderConfig], Canvas]


def _choose(config: DecoderConfig) -> sampling.Choose:
  return sampling.make_choice(config.temperature, config.top_k, config.top_p)


def _build_sbd(lm: LM, limits: Limits, config: DecoderConfig, numbers: Numbers) -> Sampler:
  rule = RULES[config.rule].build(config, numbers)
  return sbd.make_sampler(lm, limits, _choose(config), rule, config.block_size)


METHODS: dict[str, Method] = {
  "ar": Method(
    reads=lambda config: (),
    build=lambda lm, limits, config, numbers: ar.make_sampler(lm, limits, _choose(config)),
    canvas=lambda state, config: Canvas(state.out.length_B, 0),
  ),
  "sbd": Method(
    reads=lambda config: ("block_size", "rule", *RULES[config.rule].reads),
    build=_build_sbd,
    canvas=lambda state, config: Canvas(state.block_start_B, config.block_size),
  ),
}


def used_fields(config: DecoderConfig) -> tuple[str, ...]:
  """The fields that have an effect, given the others."""
  drawn = ("top_k", "top_p") if config.temperature > 0 else ()
  return ("name", "max_tokens", "temperature", *drawn, *METHODS[config.name].reads(config))


def settings_of(config: DecoderConfig) -> dict[str, Any]:
  """The settings that have an effect, for records."""
  return {name: getattr(config, name) for name in used_fields(config)}


def without_effect(config: DecoderConfig, given: Iterable[str]) -> str:
  """Which of the `given` fields have no effect, as a sentence; "" where all have one."""
  used = used_fields(config)
  idle = [f"decoder.{name}" for name in given if name not in used]
  if not idle:
    return ""
  return (
    f"{', '.join(idle)} has no effect here: with decoder.name={config.name} the settings are "
    f"{', '.join(used)} (others belong to another name, rule or temperature)"
  )


def check_used(config: DecoderConfig, given: Iterable[str]):
  """Raises UsageError for fields without effect: in a sweep they would label equal points apart."""
  if sentence := without_effect(config, given):
    raise UsageError(sentence)


def from_flags(texts: Mapping[str, str]) -> DecoderConfig:
  """The config of `--decoder.field=text` flags.

  A field without effect is noted on stderr and left alone, so that a script may loop over methods
  with one set of flags.

  Raises:
    UsageError: an unknown field or a value out of range.
  """
  fields = parse_fields(DecoderConfig, texts, "decoder")
  config = to_dataclass(DecoderConfig, fields, "decoder")
  if sentence := without_effect(config, fields):
    print(f"note: {sentence}", file=sys.stderr)
  return config


def numbers_of(config: DecoderConfig) -> dict[str, Any]:
  """The settings a compiled program takes as arguments."""
  return {name: getattr(config, name) for name in TRACED}


def static_part(config: DecoderConfig) -> DecoderConfig:
  """What a compiled program depends on; equal for configs that differ in `numbers_of` alone."""
  defaults = {f.name: f.default for f in dataclasses.fields(config)}
  return dataclasses.replace(config, **{name: defaults[name] for name in TRACED})


def make_sampler(
  lm: LM, config: DecoderConfig, eos_ids: tuple[int, ...], numbers: Numbers | None = None
) -> Sampler:
  """The sampler of `config`; `numbers` (default: its own) may be traced.

  Raises:
    UsageError: the model cannot be decoded this way (no mask token).
  """
  limits = Limits(config.max_tokens, eos_ids)
  numbers = numbers_of(config) if numbers is None else numbers
  return METHODS[config.name].build(lm, limits, config, numbers)
