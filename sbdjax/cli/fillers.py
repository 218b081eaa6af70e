"""Masked diffusion and self-speculative decoding by name: what `cli.decoders` builds for them.

Both fill a row in any order, so a prompt may be empty or hold mask tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

from sbdjax.corruption import MASK_SCHEDULES
from sbdjax.decode import mdm, sampling, select, ssmd, windows
from sbdjax.decode.base import Limits, Sampler
from sbdjax.decode.windows import Window
from sbdjax.errors import UsageError
from sbdjax.lm import LM
from sbdjax.sigma_lm import SigmaLM

# `config` below is a `cli.decoders.DecoderConfig`; `numbers` its possibly traced settings.


class UnmaskChoice(NamedTuple):
  """Which masks a forward reveals, by name.

  Attributes:
    reads: fields of DecoderConfig it depends on.
    build: (config, numbers) -> mdm.Unmask.
  """

  reads: tuple[str, ...]
  build: Callable[[Any, Mapping[str, Any]], mdm.Unmask]


class WindowChoice(NamedTuple):
  """How many tokens a trunk pass may reveal, by name.

  Attributes:
    reads: fields of DecoderConfig it depends on.
    build: config -> Window.
  """

  reads: tuple[str, ...]
  build: Callable[[Any], Window]


def _top_k(config, numbers) -> mdm.Unmask:
  if config.score not in select.SCORES:
    raise UsageError(
      f"decoder.score={config.score} is an order, not a score of the prediction: for a random "
      "order set decoder.unmask=first_hitting"
    )
  return mdm.by_rule(select.top_k(numbers["tokens_per_step"], select.SCORES[config.score]))


UNMASK: dict[str, UnmaskChoice] = {
  "ancestral": UnmaskChoice(
    ("steps", "noise"), lambda c, n: mdm.ancestral(n["steps"], MASK_SCHEDULES[c.noise])
  ),
  "first_hitting": UnmaskChoice(
    ("tokens_per_step",), lambda c, n: mdm.first_hitting(n["tokens_per_step"])
  ),
  "top_k": UnmaskChoice(("tokens_per_step", "score"), _top_k),
}

WINDOWS: dict[str, WindowChoice] = {
  "cosine": WindowChoice(("dtau",), lambda c: windows.cosine(c.dtau)),
  "linear": WindowChoice(("slope",), lambda c: windows.linear(c.slope)),
  "constant": WindowChoice(("window_size",), lambda c: windows.constant(c.window_size)),
  "full": WindowChoice((), lambda c: windows.full()),
}


def mdm_reads(config) -> tuple[str, ...]:
  """Fields of `config` masked diffusion depends on."""
  return ("attention", "unmask", *UNMASK[config.unmask].reads)


def build_mdm(lm: LM | SigmaLM, limits: Limits, config, numbers: Mapping[str, Any]) -> Sampler:
  """Masked diffusion by `lm`; by the trunk alone of a self-speculative model."""
  choose = sampling.make_choice(config.temperature, config.top_k, config.top_p)
  if isinstance(lm, SigmaLM):
    predict = mdm.of_sigma(lm)
  else:
    predict = mdm.of_lm(lm)
    if config.attention != "full":
      raise UsageError(
        "decoder.name=mdm lets every token see every other, which this checkpoint was not trained "
        "for; if it was, say so: decoder.attention=full"
      )
  unmask = UNMASK[config.unmask].build(config, numbers)
  return mdm.make_sampler(predict, lm.config.mask_id, limits, choose, unmask)


def ssmd_reads(config) -> tuple[str, ...]:
  """Fields of `config` self-speculative decoding depends on."""
  return ("window", *WINDOWS[config.window].reads, "n_inner", "first_equal")


def build_ssmd(lm: SigmaLM, limits: Limits, config, numbers: Mapping[str, Any]) -> Sampler:
  """Algorithm 3; `n_inner` = 0 means no limit."""
  n_inner = jnp.asarray(numbers["n_inner"])
  return ssmd.make_sampler(
    lm,
    limits,
    WINDOWS[config.window].build(config),
    jnp.where(n_inner > 0, n_inner, jnp.iinfo(jnp.int32).max),
    ssmd.log_probs(config.temperature, config.top_k, config.top_p),
    first_equal=config.first_equal,
  )
