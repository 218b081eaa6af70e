"""Decoding of diffusion models by name: what `cli.decoders` builds for static, dynamic, freedave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from sbdjax.decode import canvas as cv
from sbdjax.decode import diffusion, freedave, sampling, schedule, select
from sbdjax.decode.base import Limits, Sampler
from sbdjax.decode.forward import Forwarding
from sbdjax.errors import UsageError
from sbdjax.lm import LM

AUTO = "auto"  # as the checkpoint says

# `config` below is a `cli.decoders.DecoderConfig`.


def _canvas(lm: LM, limits: Limits, config: Any) -> cv.Canvas:
  if config.attention == AUTO:
    raise UsageError(
      f"decoder.name={config.name} fills masks, which this checkpoint was not trained for; if it "
      "was, say how: decoder.attention=full or block_causal"
    )
  return cv.Canvas(
    limits=limits,
    block_size=config.block_size,
    attention=config.attention,
    mask_id=diffusion.mask_token(lm),
    early_exit=config.exit_at if config.early_exit else "never",
  )


def _model(lm: LM, config: Any) -> diffusion.Model:
  for token in config.suppress:
    if not 0 <= token < lm.config.vocab_size:
      raise UsageError(
        f"decoder.suppress names token {token}; the model knows 0..{lm.config.vocab_size - 1}"
      )
  cache = {"full": "none", "block_causal": "block"}[config.attention]
  forwarding = Forwarding(
    cache=cache if config.cache == AUTO else config.cache,
    shifted=bool(config.shifted),
    draft_mode=config.draft_mode,
    cfg_scale=config.cfg_scale,
  )
  order = select.ORDERS[config.score]
  return diffusion.Model(
    lm,
    sampling.make_choice(config.temperature, config.top_k, config.top_p),
    order,
    forwarding,
    config.suppress,
  )


def _schedule(config: Any, numbers: Mapping[str, Any]) -> schedule.Schedule:
  """By threshold where there is one, else by count."""
  if numbers["threshold"] is not None and config.name != "static":
    return schedule.threshold(numbers["threshold"])
  steps = numbers["steps_per_block"]
  return schedule.static(jnp.where(jnp.asarray(steps) > 0, steps, config.block_size))


def build(lm: LM, limits: Limits, config: Any, numbers: Mapping[str, Any]) -> Sampler:
  canvas = _canvas(lm, limits, config)
  return diffusion.make_sampler(_model(lm, config), canvas, _schedule(config, numbers))


def build_freedave(lm: LM, limits: Limits, config: Any, numbers: Mapping[str, Any]) -> Sampler:
  canvas = _canvas(lm, limits, config)
  drafting = freedave.Drafting(config.draft_steps, config.eager, config.frugal, config.carry)
  model = _model(lm, config)
  return freedave.make_sampler(model, canvas, _schedule(config, numbers), drafting)


def reads(*fields: str) -> Callable[[Any], tuple[str, ...]]:
  """What all methods that fill a canvas read, and `fields`."""
  common = ("attention", "shifted", "cache", "block_size", "score", "cfg_scale", "suppress")
  return lambda config: (
    *common, *fields, "early_exit", *(("exit_at",) if config.early_exit else ())
  )  # fmt: skip


def freedave_reads(config: Any) -> tuple[str, ...]:
  paced = "steps_per_block" if config.threshold is None else "threshold"
  return reads(paced, "draft_steps", "draft_mode", "eager", "frugal", "carry")(config)
