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

from sbdjax.decode.any_order.mdm import MDM, Ancestral
from sbdjax.decode.any_order.ssmd import SSMD
from sbdjax.decode.any_order.windows import Cosine, Linear, Window
from sbdjax.decode.decoding import Decoding
from sbdjax.decode.generate import Decoder
from sbdjax.decode.tokens import Categorical
from sbdjax.errors import UsageError
from sbdjax.evals import record
from sbdjax.interop.pretrained import Pretrained

# What `parse_rules` reads: (N, dtau) of Table 2 of self-speculative masked diffusion (arXiv:2510.03929).
RULES = "1:0.01,1:0.02,1:0.04,1:0.083,2:0.083,3:0.125,4:0.167"

# Rows of tokens, prompts included -> what is said of them; "each": lists with a number for every row.
Quality = Callable[[list[list[int]]], dict[str, Any]]


def parse_rules(text: str) -> list[tuple[int, Window]]:
  """`N:DTAU` or `N:linear:SLOPE` of the self-speculative sampler, between commas.

  Returns:
    Inner loops N, and the cosine or the linear window.

  Raises:
    UsageError: it is something else.
  """
  try:
    return [_rule(*rule.split(":")) for rule in text.split(",")]
  except (KeyError, TypeError, ValueError):
    raise UsageError(
      f"--rules={text!r}: give N:DTAU (cosine windows) or N:linear:SLOPE between commas, as in {RULES}"
    ) from None


def _rule(n: str, *window: str) -> tuple[int, Window]:
  *kind, size = window
  return int(n), {(): Cosine, ("linear",): Linear}[tuple(kind)](float(size))


TABLE_2 = tuple(parse_rules(RULES))


def self_speculative(
  max_tokens: int, rules: Iterable[tuple[int, Window]] = TABLE_2
) -> list[Decoding]:
  """Inner loops N and windows."""
  methods = [SSMD(window, n_inner=n, token=Categorical(1.0)) for n, window in rules]
  return [Decoding(method, max_tokens) for method in methods]


def masked_diffusion(
  model: Pretrained, max_tokens: int, steps: Iterable[int], noise: str
) -> list[Decoding]:
  """Numbers of steps of the ancestral sampler; of a self-speculative model, by its trunk alone."""
  methods = [MDM(Ancestral(n, noise), token=Categorical(1.0)) for n in steps]
  return [Decoding(m, max_tokens).for_model(model.lm, model.generation) for m in methods]


def measure(
  model: Pretrained,
  decoder: Decoder,
  decoding: Decoding,
  prompts: Sequence[Sequence[int]],
  batch_size: int,
  seed: int,
  quality: Quality,
  *,
  warm_up: bool = True,
) -> dict[str, Any]:
  """One setting's numbers, means over samples; compilation apart, rows wait for the slowest.

  "each" has the forwards of every sample, and what `quality` says of every sample.
  """
  before = decoder.compile_seconds
  key, size = jax.random.key(seed), min(len(prompts), batch_size)
  run = lambda some: list(decoder.generate(decoding.method, model.params, some, key, size))
  if warm_up:
    run(prompts[:size])  # compiles, and the first execution is slower than the others
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
  found = quality([r.prompt_tokens + r.tokens for r in results])
  each = {"nfe": [round(float(r.nfe), 4) for r in results]} | found.get("each", {})
  return out | found | {"each": each}


class Recorder:
  """Measured settings as JSON lines; what is there already is not measured again.

  Attributes:
    lines: the records.
  """

  def __init__(self, path: str, shared: dict[str, Any]):
    """`shared`: settings of every line."""
    self.lines = record.JsonLines(pathlib.Path(path).expanduser())
    self._shared = shared

  def once(self, settings: dict[str, Any], run: Callable[[], dict[str, Any]]) -> bool:
    """Records {settings, **run(), provenance}, unless a record has these settings.

    Returns:
      Whether it ran.
    """
    settings = json.loads(json.dumps(settings | self._shared))
    if any(line["settings"] == settings for line in self.lines.records):
      return False
    start = time.perf_counter()
    found = run()
    self.lines.append({"settings": settings, **found, **record.provenance()})
    shown = {k: round(v, 4) for k, v in found.items() if isinstance(v, float)}
    seconds = time.perf_counter() - start
    print(settings["label"], settings.get("decoder", ""), shown, f"{seconds:.0f} s", flush=True)
    return True

  def sweep(
    self,
    label: str,
    model: Pretrained,
    settings: Iterable[Decoding],
    prompts: Sequence[Sequence[int]],
    *,
    batch_size: int,
    seed: int,
    quality: Quality,
  ) -> None:
    """`measure` of every setting; settings that differ in numbers alone share a program."""
    decoders: dict[int, Decoder] = {}
    programs: set[Any] = set()
    for decoding in settings:
      limit = decoding.max_tokens
      if limit not in decoders:
        decoders[limit] = Decoder(model.lm, decoding.limits(()))
      about = {
        "label": label,
        "decoder": decoding.flat(),
        "weights_crc32": record.fingerprint(model.params),
      }
      args = (model, decoders[limit], decoding, prompts, batch_size, seed, quality)
      program = (limit, jax.tree.structure(decoding.method))
      if self.once(about, functools.partial(measure, *args, warm_up=program not in programs)):
        programs.add(program)  # what was recorded before has compiled nothing here
