"""Samples of models that fill texts in any order, measured: what the experiments share."""

from __future__ import annotations

import functools
import json
import pathlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from sbdjax.cli import decoders, record
from sbdjax.cli.decoders import DecoderConfig
from sbdjax.decode.generate import Decoder
from sbdjax.errors import UsageError
from sbdjax.interop.pretrained import Pretrained

# (N, dtau) of Table 2 of self-speculative masked diffusion (arXiv:2510.03929).
TABLE_2 = ((1, 0.01), (1, 0.02), (1, 0.04), (1, 0.083), (2, 0.083), (3, 0.125), (4, 0.167))
# The same as text: what `parse_rules` reads.
RULES = ",".join(f"{n}:{dtau}" for n, dtau in TABLE_2)

# Rows of tokens, prompts included -> what is said of them.
Quality = Callable[[list[list[int]]], dict[str, Any]]


def parse_rules(text: str) -> list[tuple[int, float]]:
  """`N:DTAU` of the self-speculative sampler, between commas.

  Raises:
    UsageError: it is something else.
  """
  try:
    return [(int(n), float(dtau)) for n, dtau in (rule.split(":") for rule in text.split(","))]
  except ValueError:
    raise UsageError(f"--rules={text!r}: give N:DTAU between commas, as in {RULES}") from None


def self_speculative(
  max_tokens: int, rules: Iterable[tuple[int, float]] = TABLE_2
) -> list[DecoderConfig]:
  """Inner loops N and dtau of the cosine window."""
  common = dict(max_tokens=max_tokens, temperature=1.0)
  return [DecoderConfig("ssmd", **common, n_inner=n, dtau=dtau) for n, dtau in rules]


def masked_diffusion(
  model: Pretrained, max_tokens: int, steps: Iterable[int], noise: str
) -> list[DecoderConfig]:
  """Numbers of steps of the ancestral sampler; of a self-speculative model, by its trunk alone."""
  common = dict(max_tokens=max_tokens, temperature=1.0, noise=noise)
  settings = [DecoderConfig("mdm", **common, steps=t) for t in steps]
  return [decoders.for_checkpoint(config, model.generation, ()) for config in settings]


def measure(
  model: Pretrained,
  decoder: Decoder,
  config: DecoderConfig,
  prompts: Sequence[Sequence[int]],
  batch_size: int,
  seed: int,
  quality: Quality,
) -> dict[str, Any]:
  """One setting's numbers, means over samples; compilation apart, rows wait for the slowest."""
  before = decoder.compile_seconds
  key, numbers = jax.random.key(seed), decoders.numbers_of(config)
  size = min(len(prompts), batch_size)
  run = lambda some: list(decoder.generate(model.params, some, key, numbers, size))
  if not before:
    run(prompts[:size])  # the first execution is slower than the others
  compiled = decoder.compile_seconds - before
  results = run(prompts)
  mean = lambda field: float(np.mean([getattr(r, field) for r in results]))
  out = {
    "nfe": mean("nfe"),
    "nfe_std": float(np.std([r.nfe for r in results])),
    "seconds_per_sample": sum(r.seconds / r.batch_size for r in results) / len(results),
    "compile_seconds": compiled,
  }
  if results[0].causal_passes is not None:
    accepted, drafted = sum(r.accepted for r in results), sum(r.drafted for r in results)
    out |= {"trunk_passes": mean("trunk_passes"), "causal_passes": mean("causal_passes")}
    out |= {"acceptance": accepted / drafted, "rejections": (drafted - accepted) / len(results)}
  return out | quality([r.prompt_tokens + r.tokens for r in results])


class Recorder:
  """Measured settings as JSON lines; what is there already is not measured again.

  Attributes:
    lines: the records.
  """

  def __init__(self, path: str, shared: dict[str, Any]):
    """`shared`: settings of every line."""
    self.lines = record.JsonLines(pathlib.Path(path))
    self._shared = shared

  def once(self, settings: dict[str, Any], run: Callable[[], dict[str, Any]]):
    """Records {settings, **run(), provenance}, unless a record has these settings."""
    settings = json.loads(json.dumps(settings | self._shared))
    if any(line["settings"] == settings for line in self.lines.records):
      return
    start = time.perf_counter()
    found = run()
    self.lines.append({"settings": settings, **found, **record.provenance()})
    shown = {k: round(v, 4) for k, v in found.items() if isinstance(v, float)}
    seconds = time.perf_counter() - start
    print(settings["label"], settings.get("decoder", ""), shown, f"{seconds:.0f} s", flush=True)

  def sweep(
    self,
    label: str,
    model: Pretrained,
    configs: Iterable[DecoderConfig],
    prompts: Sequence[Sequence[int]],
    *,
    batch_size: int,
    seed: int,
    quality: Quality,
  ):
    """`measure` of every setting; settings that differ in numbers alone share a program."""
    compiled: dict[Any, Decoder] = {}
    for config in configs:
      program = decoders.static_part(config)
      if program not in compiled:
        build = functools.partial(decoders.make_sampler, model.lm, config, ())
        compiled[program] = Decoder(build, allow_empty=True)
      settings = {
        "label": label,
        "decoder": decoders.settings_of(config),
        "weights_crc32": record.fingerprint(model.params),
      }
      args = (model, compiled[program], config, prompts, batch_size, seed, quality)
      self.once(settings, functools.partial(measure, *args))
