"""A model with random weights: blocks against single tokens, and what decoding gets of the memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from sbdjax.bench import overhead, parallel, roofline
from sbdjax.bench.decoding import DecodingTiming, time_sampler, with_overhead
from sbdjax.bench.overhead import Forward
from sbdjax.bench.timing import TimedDecoder
from sbdjax.decode.base import Limits
from sbdjax.decode.causal.ar import AR
from sbdjax.decode.causal.sbd import SBD
from sbdjax.decode.rules import EBEntropy
from sbdjax.lm import LM


@dataclasses.dataclass(frozen=True)
class BlockRow:
  """A forward of a block, and what rooflines say of it: an entry of the paper's Table 3.

  Attributes:
    batch_size, kv_cache, block_size: B, tokens in the cache, k.
    seconds: median; `low` and `high`: fastest and slowest.
    slowdown: seconds / those of k = 1 with the same batch and cache; None where that was not timed.
    predicted: the same by the roofline of this model on this device; None for an unknown device.
    paper, corrected: by the paper's table, and by its table with the true widths.
  """

  batch_size: int
  kv_cache: int
  block_size: int
  seconds: float
  low: float
  high: float
  slowdown: float | None
  predicted: float | None
  paper: float
  corrected: float


def time_blocks(
  lm: LM,
  params: Any,
  grid: Sequence[tuple[int, int]],
  block_sizes: Sequence[int],
  *,
  repeats: int,
  lasting: float,
) -> Iterator[BlockRow]:
  """A row for every (batch size, cache) of `grid` and every block size, 1 first."""
  hardware = roofline.hardware_of(jax.devices()[0].device_kind)
  itemsize = np.dtype(lm.config.compute_dtype).itemsize
  for batch, cache in grid:
    one = None
    for k in sorted(block_sizes):
      causal = 1 if k == 1 else 0
      found = parallel.time_forward(
        lm, params, k, batch, cache, repeats, num_causal=causal, lasting=lasting
      )
      one = found.median if k == 1 else one
      predict = lambda shape, device, at=(k, cache, batch): roofline.slowdown(shape, device, *at)
      own = roofline.shape_of(lm.config, itemsize)
      yield BlockRow(
        batch,
        cache,
        k,
        *found,
        slowdown=None if one is None else found.median / one,
        predicted=predict(own, hardware) if hardware else None,
        paper=predict(roofline.PAPER, roofline.H100_FP8),
        corrected=predict(roofline.CORRECTED, roofline.H100_FP8),
      )


def read_bytes(lm: LM, params: Any, batch: int, cache: int) -> int:
  """What a forward of one token per row must read: weights, and the keys and values of the cache.

  Of an embedding that is not the output head as well, only the rows of the tokens are read.
  """
  c = lm.config
  weights = sum(x.nbytes for x in jax.tree.leaves(params))
  if not c.tie_embeddings:
    weights -= params["embedding"].nbytes
  itemsize = np.dtype(c.compute_dtype).itemsize
  return weights + 2 * c.num_layers * batch * cache * c.num_kv_heads * c.head_dim * itemsize


@dataclasses.dataclass(frozen=True)
class SamplerSpeed:
  """A sampler on the model.

  Attributes:
    row: speed and overhead.
    of_copy: bytes that its forwards must read / seconds, as a share of the bandwidth of a copy;
      None for a sampler whose forwards are not all of one token.
  """

  row: DecodingTiming
  of_copy: float | None


def time_samplers(
  lm: LM,
  params: Any,
  *,
  batch_size: int,
  prompt_length: int,
  max_tokens: int,
  block_size: int,
  copy: float,
  repeats: int,
) -> Iterator[SamplerSpeed]:
  """AR, then SBD; random weights reveal about one token per forward, so only times mean anything.

  Args:
    copy: bytes per second of a copy, read and written ones counted.
  """
  k = block_size
  methods = {
    "ar": (AR(), [Forward(1, 0, 1)]),
    f"sbd block_size={k}": (SBD(k, EBEntropy(0.1)), [Forward(0, k, k), Forward(k, k, k)]),
  }
  known = lm.config.vocab_size - 1
  prompts = [[(7 * i + j) % known for j in range(prompt_length)] for i in range(batch_size)]
  for name, (method, forwards) in methods.items():
    decoder = TimedDecoder(lm, Limits(max_tokens))
    row, _ = time_sampler(name, decoder, method, params, prompts, repeats=repeats)
    sizes = dict(batch_size=batch_size, max_tokens=max_tokens, repeats=repeats)
    added = overhead.measure(lm, params, decoder, method, forwards, prompts[0], **sizes)
    of_copy = None
    if name == "ar":
      step = batch_size / row.tokens_per_second
      read = read_bytes(lm, params, batch_size, prompt_length + max_tokens // 2)
      of_copy = read / step / copy
    yield SamplerSpeed(with_overhead(row, added), of_copy)
