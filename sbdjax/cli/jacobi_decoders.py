"""Jacobi decoding by name: what `cli.decoders` builds for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sbdjax.decode import jacobi, jacobi_drafts, jacobi_multiblock, jacobi_recycling
from sbdjax.decode.base import Limits, Sampler
from sbdjax.decode.jacobi_drafts import Drafting, Fill
from sbdjax.decode.jacobi_recycling import Pool
from sbdjax.decode.verify import VerifyRule
from sbdjax.lm import LM

# `config` below is a `cli.decoders.DecoderConfig`.


class DraftsChoice(NamedTuple):
  """Where drafts stand, by the name of the method.

  Attributes:
    reads: fields of DecoderConfig it depends on.
    columns: config -> tokens of a chain.
    build: (config, fill) -> Drafting.
  """

  reads: tuple[str, ...]
  columns: Callable[[Any], int]
  build: Callable[[Any, Fill], Drafting]


class PoolChoice(NamedTuple):
  """What is recycled, by name.

  Attributes:
    reads: fields of DecoderConfig it depends on.
    build: (config, longest text a pool may hold) -> Pool, or None for none.
  """

  reads: tuple[str, ...]
  build: Callable[[Any, int], Pool | None]


DRAFTS: dict[str, DraftsChoice] = {
  "jacobi": DraftsChoice(
    (), lambda c: c.block_size, lambda c, fill: jacobi_drafts.blocks(c.block_size, fill)
  ),
  "jacobi_window": DraftsChoice(
    (), lambda c: c.block_size, lambda c, fill: jacobi_drafts.window(c.block_size, fill)
  ),
  "jacobi_multiblock": DraftsChoice(
    ("num_blocks", "spawn_ratio", "eager"),
    lambda c: c.block_size * c.num_blocks,
    lambda c, fill: jacobi_multiblock.multiblock(
      c.block_size, fill, c.num_blocks, c.spawn_ratio, c.eager
    ),
  ),
}

POOLS: dict[str, PoolChoice] = {
  "none": PoolChoice((), lambda c, width: None),
  "ngrams": PoolChoice(
    ("pool_size", "n_gram", "num_candidates", "draft_mode"),
    lambda c, width: jacobi_recycling.ngrams(c.pool_size, c.n_gram, c.num_candidates),
  ),
  "points": PoolChoice(
    ("num_candidates", "draft_mode"),
    lambda c, width: jacobi_recycling.points(c.num_candidates + 1, width),
  ),
}

GUESSES: dict[str, Callable[[LM], Fill]] = {
  "text": lambda lm: jacobi_drafts.from_text(),
  "vocabulary": lambda lm: jacobi_drafts.from_vocabulary(lm.config.vocab_size, lm.config.mask_id),
}


def reads(config) -> tuple[str, ...]:
  """Fields of `config` a Jacobi method depends on."""
  drafts, pool = DRAFTS[config.name], POOLS[config.pool]
  return ("block_size", *drafts.reads, "guess", "pool", *pool.reads, "verify")


def columns(config) -> int:
  """Tokens of a chain."""
  return DRAFTS[config.name].columns(config)


def build(lm: LM, limits: Limits, config, rule: VerifyRule) -> Sampler:
  """Jacobi decoding of `lm`.

  Raises:
    UsageError: settings that do not fit together (`jacobi.make_sampler` and what it is given).
  """
  drafts, pool = DRAFTS[config.name], POOLS[config.pool]
  fill = GUESSES[config.guess](lm)
  recycled = pool.build(config, config.max_tokens + 1 + drafts.columns(config))
  drafting = drafts.build(config, fill)
  return jacobi.make_sampler(lm, limits, rule, drafting, recycled, config.draft_mode)
