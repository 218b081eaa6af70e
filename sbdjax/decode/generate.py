"""Drives a sampler over a list of prompts and hands back plain Python results.

All prompts are padded to one width and run in batches of one size, so one compilation serves
them all; compiling is timed apart from running.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

from sbdjax.decode import base
from sbdjax.decode.base import Generation, Sampler
from sbdjax.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Result:
  """One prompt's outcome.

  Attributes:
    prompt_tokens: ids given.
    tokens: ids generated; the whole canvas after the prompt for samplers that fill one.
    valid: how many of them are text: up to the first EOS, which counts.
    nfe: network forwards of this row, its prefill apart; of a self-speculative model in units of
      a forward of all its blocks, a fraction.
    prefill_nfe: forwards spent on the prompt.
    query_tokens: the widths of the `nfe` forwards summed, drafts included.
    reveal_step: for each generated token, the 0-based forward that revealed it
      (samplers that draft count commits instead; -1: filled in behind the end).
    drafted: tokens that drafts proposed.
    accepted: how many of them became text.
    finish: "eos" or "length".
    seconds: wall-clock of the batch this row was decoded in, without compilation.
    batch_size: rows decoded together.
    trunk_passes, causal_passes: what `nfe` is made of, for self-speculative models.
  """

  prompt_tokens: list[int]
  tokens: list[int]
  valid: int
  nfe: int | float
  prefill_nfe: int
  query_tokens: int
  drafted: int
  accepted: int
  reveal_step: list[int]
  finish: str
  seconds: float
  batch_size: int
  trunk_passes: int | None = None
  causal_passes: int | None = None

  @property
  def tpf(self) -> float:
    """Valid tokens a forward: the NFE speed-up over autoregressive decoding; 0 without any."""
    return self.valid / self.nfe if self.nfe else 0.0

  @property
  def text_tokens(self) -> list[int]:
    """The valid tokens."""
    return self.tokens[: self.valid]


def pad_prompts(
  prompts: Sequence[Sequence[int]], width: int = 0, allow_empty: bool = False
) -> tuple[np.ndarray, np.ndarray]:
  """Right-pads prompts to `width` (0: the longest): int32 [B, P] and their lengths [B].

  Raises:
    UsageError: no prompts, or an empty one (most methods need one token to start from).
  """
  if not prompts:
    raise UsageError("there are no prompts to decode")
  lengths = np.array([len(p) for p in prompts], np.int32)
  if lengths.min() == 0 and not allow_empty:
    raise UsageError(f"prompt {int(lengths.argmin())} is empty: give at least one token (bos)")
  width = max(width, int(lengths.max()))
  padded = np.zeros((len(prompts), width), np.int32)
  for row, prompt in zip(padded, prompts, strict=True):
    row[: len(prompt)] = prompt
  return padded, lengths


def check_context(
  prompts: Sequence[Sequence[int]], max_tokens: int, max_seq_len: int, vocab_size: int
):
  """Refuses prompts the model cannot take.

  Raises:
    UsageError: a prompt plus `max_tokens` exceeds the context, or holds an id the model lacks.
  """
  for i, prompt in enumerate(prompts):
    if len(prompt) + max_tokens > max_seq_len:
      raise UsageError(
        f"prompt {i} has {len(prompt)} tokens; with max_tokens={max_tokens} that exceeds the "
        f"model's context of {max_seq_len}: shorten the prompt or lower max_tokens"
      )
    bad = [t for t in prompt if not 0 <= t < vocab_size]
    if bad:
      raise UsageError(f"prompt {i} holds token {bad[0]}; the model knows 0..{vocab_size - 1}")


def results_of(out: Generation, rows: int, seconds: float) -> list[Result]:
  """The first `rows` rows of a finished Generation as Results."""
  out = jax.device_get(out)
  results = []
  for i in range(rows):
    start, stop = int(out.prompt_len_B[i]), int(out.length_B[i])
    end = stop if out.text_end_B is None else min(stop, int(out.text_end_B[i]))
    nfe = trunk_passes = int(out.nfe_B[i])
    causal_passes = None if out.causal_passes_B is None else int(out.causal_passes_B[i])
    if causal_passes is not None:
      trunk, causal = out.blocks
      nfe = (trunk * trunk_passes + causal * causal_passes) / (trunk + causal)
    results.append(
      Result(
        prompt_tokens=out.tokens_BxC[i, :start].tolist(),
        tokens=out.tokens_BxC[i, start:stop].tolist(),
        valid=end - start,
        nfe=nfe,
        prefill_nfe=int(out.prefill_nfe_B[i]),
        query_tokens=int(out.query_tokens_B[i]),
        drafted=int(out.drafted_B[i]),
        accepted=int(out.accepted_B[i]),
        reveal_step=out.reveal_step_BxC[i, start:stop].tolist(),
        finish="eos" if out.eos_B[i] else "length",
        seconds=seconds,
        batch_size=out.length_B.shape[0],
        trunk_passes=None if causal_passes is None else trunk_passes,
        causal_passes=causal_passes,
      )
    )
  return results


class Decoder:
  """A sampler compiled once and run over many prompts.

  Attributes:
    compile_seconds: time spent compiling so far.
  """

  def __init__(self, build: Callable[..., Sampler], allow_empty: bool = False):
    """`build(settings) -> Sampler` is called inside jit: numbers in `settings` (gamma, ...) are
    traced, so changing them compiles nothing. `allow_empty`: prompts may be."""
    self._build, self._allow_empty = build, allow_empty
    self._run = jax.jit(
      lambda settings, params, prompts, lengths, keys: (
        base.decode(build(settings), params, prompts, lengths, keys).out
      )
    )
    self._compiled = {}
    self.compile_seconds = 0.0

  def generate(
    self,
    params,
    prompts: Sequence[Sequence[int]],
    key: jax.Array,
    settings=None,
    batch_size: int = 0,
  ) -> Iterator[Result]:
    """Decodes `prompts`, `batch_size` at a time (0: all at once), in order.

    Row i uses `fold_in(key, i)`, whatever the batch size. The last batch is filled up with its
    own last prompt, whose extra results are dropped.
    """
    padded, lengths = pad_prompts(prompts, allow_empty=self._allow_empty)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, np.arange(len(prompts)))
    size = min(batch_size or len(prompts), len(prompts))
    for first in range(0, len(prompts), size):
      rows = np.minimum(np.arange(first, first + size), len(prompts) - 1)
      args = (settings, params, padded[rows], lengths[rows], keys[rows])
      run = self._executable(args)
      start = time.perf_counter()
      out = jax.block_until_ready(run(*args))
      seconds = time.perf_counter() - start
      yield from results_of(out, min(size, len(prompts) - first), seconds)

  def _executable(self, args):
    signature = str(jax.tree.map(jax.typeof, args))
    if signature not in self._compiled:
      start = time.perf_counter()
      self._compiled[signature] = self._run.lower(*args).compile()
      self.compile_seconds += time.perf_counter() - start
    return self._compiled[signature]
