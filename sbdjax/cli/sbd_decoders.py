"""Autoregressive, SBD and verified SBD decoding by name: what `cli.decoders` builds for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from sbdjax.decode import ar, sampling, sbd, sbd_verified, select, verify
from sbdjax.decode.base import Limits, Sampler
from sbdjax.decode.select import Rule
from sbdjax.errors import UsageError
from sbdjax.lm import LM

# `config` below is a `cli.decoders.DecoderConfig`; `numbers` its possibly traced settings.
Numbers = Mapping[str, Any]


def _score(config) -> select.Score:
  if config.score not in select.SCORES:
    raise UsageError(
      f"decoder.score={config.score} is an order, not a score of the prediction: the rule "
      f"{config.rule} knows {', '.join(select.SCORES)}"
    )
  return select.SCORES[config.score]


class RuleChoice(NamedTuple):
  """A reveal rule by name.

  Attributes:
    reads: fields of DecoderConfig it depends on.
    build: (config, numbers) -> Rule; `numbers` has the possibly traced values of `decoders.TRACED`.
  """

  reads: tuple[str, ...]
  build: Callable[[Any, Numbers], Rule]


RULES: dict[str, RuleChoice] = {
  "eb_entropy": RuleChoice(("gamma",), lambda _, n: select.eb_entropy(n["gamma"])),
  "eb_confidence": RuleChoice(("gamma",), lambda _, n: select.eb_confidence(n["gamma"])),
  "eb_margin": RuleChoice(("gamma",), lambda _, n: select.eb_margin(n["gamma"])),
  "factor": RuleChoice(("f",), lambda _, n: select.factor(n["f"])),
  "confidence_threshold": RuleChoice(("tau",), lambda _, n: select.confidence_threshold(n["tau"])),
  "entropy_threshold": RuleChoice(("gamma",), lambda _, n: select.entropy_threshold(n["gamma"])),
  "top_k": RuleChoice(
    ("tokens_per_step", "score"),
    lambda config, n: select.top_k(n["tokens_per_step"], _score(config)),
  ),
}


def _choose(config) -> sampling.Choose:
  return sampling.make_choice(config.temperature, config.top_k, config.top_p)


def build_ar(lm: LM, limits: Limits, config, numbers: Numbers) -> Sampler:
  """Autoregressive decoding."""
  del numbers
  return ar.make_sampler(lm, limits, _choose(config))


def sbd_reads(config) -> tuple[str, ...]:
  """Fields of `config` SBD depends on."""
  return ("block_size", "rule", *RULES[config.rule].reads)


def build_sbd(lm: LM, limits: Limits, config, numbers: Numbers) -> Sampler:
  """Blocks of k by the reveal rule of `config.rule`."""
  rule = RULES[config.rule].build(config, numbers)
  return sbd.make_sampler(lm, limits, _choose(config), rule, config.block_size)


DRAFTING: dict[str, Callable[[Any], sbd_verified.Schedule]] = {
  "alternating": lambda config: sbd_verified.alternating(),
  "fused": lambda config: sbd_verified.fused(),
  "fan_out": lambda config: sbd_verified.fan_out(config.points),
}


def _resample(config) -> verify.VerifyRule:
  if config.temperature == 0:
    raise UsageError("decoder.verify=resample draws tokens: set decoder.temperature above 0")
  warp = sampling.warped(config.temperature, config.top_k, config.top_p)
  return verify.accept_or_resample(lambda logits: jax.nn.log_softmax(warp(logits), axis=-1))


VERIFY: dict[str, Callable[[Any], verify.VerifyRule]] = {
  "exact_match": lambda config: verify.exact_match(_choose(config)),
  "resample": _resample,
}


def build_verified(lm: LM, limits: Limits, config, numbers: Numbers) -> Sampler:
  """SBD drafts that the model's own next-token half verifies."""
  del numbers
  return sbd_verified.make_sampler(
    lm,
    limits,
    _choose(config),
    VERIFY[config.verify](config),
    DRAFTING[config.drafting](config),
    config.block_size,
    config.candidates,
  )


def verified_reads(config) -> tuple[str, ...]:
  """Fields of `config` verified SBD depends on."""
  points = ("points",) if config.drafting == "fan_out" else ()
  return ("block_size", "drafting", *points, "candidates", "verify")
