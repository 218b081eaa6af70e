"""What each change to programs on a CPU is worth: python experiments/benchmarks/cpu_losses.py

Every case is a pair of callables that do the same work, before and after a change. They run in turns
in one process, so that other work on the machine hits both alike; what is recorded is the ratio
after / before of each turn: its median, lowest and highest, in processor time (all threads) and by
the clock. One JSON line per case is added to --out. --list names the cases, --only=WORD,WORD takes
those whose names begin with one of the words.

To add a case, append to CASES. What a case compares with belongs in this file, not in the package,
unless the package still uses it for other sizes.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from sbdjax import masks
from sbdjax.bench.timing import compile_for, summarise
from sbdjax.evals import record
from sbdjax.kernels import backend, parts, xla, xla_tiles
from sbdjax.lm import make_lm
from sbdjax.nn.transformer import TransformerConfig

OUT = pathlib.Path(__file__).with_name("cpu_losses.jsonl")


class Pair(NamedTuple):
  """The two sides of a case.

  Attributes:
    before, after: do the work and return arrays, or trees of them.
    facts: more for the record, like bytes of temporaries.
    tolerance: largest difference of their results, as a share of the largest number; None: their
      results are not the same thing, and not compared.
  """

  before: Callable[[], Any]
  after: Callable[[], Any]
  facts: dict[str, Any]
  tolerance: float | None = 1e-4


@dataclasses.dataclass(frozen=True)
class Case:
  """A pair to measure.

  Attributes:
    name: unique; what --only looks at.
    shapes: for the record.
    make: builds the pair, compilation included.
  """

  name: str
  shapes: dict[str, Any]
  make: Callable[[], Pair]


def compiled(before: Callable, after: Callable, args: tuple, **others) -> Pair:
  """A pair of functions of the same arguments, compiled; compile time and temporaries are facts."""
  programs = [compile_for(jax.jit(fn), *args) for fn in (before, after)]
  facts = {
    "temporary_bytes": [p.temporary_bytes for p in programs],
    "compile_cpu_seconds": [round(p.compile_cpu_seconds, 2) for p in programs],
  }
  return Pair(*(functools.partial(p.call, *args) for p in programs), facts, **others)


# Attention: sizes of published models. What xla_tiles computes was all there was.

MODELS = {
  "260K": dict(num_layers=5, num_heads=8, num_kv_heads=4, head_dim=8),
  "15M": dict(num_layers=6, num_heads=6, num_kv_heads=6, head_dim=48),
  "110M": dict(num_layers=12, num_heads=12, num_kv_heads=12, head_dim=64),
  "135M": dict(num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64),
}
TILES = backend.Backend(xla_tiles.plan, xla_tiles.attend)
XLA = backend.Backend(xla.plan, xla.attend)


def loops_plan(mask: masks.Mask, num_queries: int, num_keys: int) -> xla.XLAPlan:
  """The plan of texts beyond `xla.MAX_PAIRS`, whatever the length."""
  with mock.patch.object(xla, "MAX_PAIRS", 0):
    return xla.plan(mask, num_queries, num_keys)


# What texts up to that length take is `xla_tiles`, as before: these cases say what loops would cost.
LOOPS = backend.Backend(loops_plan, xla.attend)


def normal(*shapes: tuple[int, ...]) -> list[jax.Array]:
  rng = np.random.default_rng(0)
  return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


def over_cache(model: str, slots: int, used: int, tokens: int, batch: int = 1) -> Case:
  """One forward's attention, layer after layer of a stack of caches, `used` slots of each filled."""
  m = MODELS[model]

  def make():
    layers, heads, kv_heads, head_dim = m.values()
    cache = (layers, batch, kv_heads, slots, head_dim)
    new = (batch, kv_heads, tokens, head_dim)
    shapes = ((batch, heads, tokens, head_dim), cache, cache, new, new)
    length = jnp.full((batch,), used, jnp.int32)

    def program(way: backend.Backend):
      def run(q, cached_k, cached_v, k, v, length):
        mask = masks.Cached(length, jnp.zeros_like(length), num_causal=tokens)
        plan = way.plan(mask, tokens, slots + tokens)

        def layer(q, i):
          keys, values = (
            (parts.StackedLayer(cached, i), x) for cached, x in ((cached_k, k), (cached_v, v))
          )
          return way.attend(q, keys, values, plan), None

        return jax.lax.scan(layer, q, jnp.arange(layers))[0]

      return run

    return compiled(program(TILES), program(XLA), (*normal(*shapes), length))

  shapes = m | dict(batch=batch, slots=slots, used=used, tokens=tokens)
  return Case(f"cache {model} {slots} slots, {used} used, {tokens} tokens", shapes, make)


def training_attention(model: str, length: int, batch: int = 1) -> Case:
  """One layer's attention under the SBD mask over [clean; masked], forward and backward, in loops."""
  m = MODELS[model]

  def make():
    _, heads, kv_heads, head_dim = m.values()
    of = lambda heads: (batch, heads, 2 * length, head_dim)
    args = normal(of(heads), of(kv_heads), of(kv_heads), of(heads))

    def program(way: backend.Backend):
      def run(q, k, v, d_out, block_size):
        plan = way.plan(masks.SBDTrain(block_size), 2 * length, 2 * length)
        out, back = jax.vjp(lambda q, k, v: way.attend(q, (k,), (v,), plan), q, k, v)
        return out, back(d_out)

      return run

    return compiled(program(TILES), program(LOOPS), (*args, jnp.int32(8)))

  shapes = m | dict(batch=batch, length=length)
  return Case(f"training attention in loops {model} L={length} B={batch}", shapes, make)


def small_lm(model: str, num_layers: int, vocab_size: int, length: int):
  m = MODELS[model]
  width = m["num_heads"] * m["head_dim"]
  return make_lm(
    TransformerConfig(
      vocab_size=vocab_size,
      d_model=width,
      d_ff=8 * width // 3 // 32 * 32,
      max_seq_len=length,
      **m | dict(num_layers=num_layers),
    )
  )


def block_update(way: backend.Backend, lm, length: int, batch: int):
  """(function, arguments): gradients of a mean over [clean; masked], the network of an SBD update."""
  params = lm.init(jax.random.key(0))
  tokens = jnp.asarray(
    np.random.default_rng(0).integers(0, lm.config.vocab_size, (batch, 2 * length)), jnp.int32
  )
  positions = jnp.tile(jnp.arange(length, dtype=jnp.int32), (batch, 2))

  def loss(params, tokens, block_size):
    hidden, _ = lm.apply(params, tokens, positions_BxT=positions, mask=masks.SBDTrain(block_size))
    chosen = jax.nn.log_softmax(lm.logits(params, hidden))
    return -jnp.mean(jnp.take_along_axis(chosen, tokens[..., None], axis=-1))

  def run(*args):
    with mock.patch.object(backend, "get", lambda *_, **__: way):
      return jax.value_and_grad(loss)(*args)

  return run, (params, tokens, jnp.int32(8))


def update(model: str, num_layers: int, vocab_size: int, length: int, batch: int) -> Case:
  """A network's gradients under the SBD mask, by either way of attention."""

  def make():
    lm = small_lm(model, num_layers, vocab_size, length)
    before, args = block_update(TILES, lm, length, batch)
    return compiled(before, block_update(LOOPS, lm, length, batch)[0], args)

  sizes = dict(num_layers=num_layers, vocab_size=vocab_size, batch=batch, length=length)
  return Case(f"update in loops {model} L={length} B={batch}", MODELS[model] | sizes, make)


def update_length(model: str, num_layers: int, vocab_size: int, short: int, long: int) -> Case:
  """The same tokens in short rows (before) and in long ones (after): what length costs per token.

  Products with weights and with the head take as long for both, attention does not: layers and
  vocabulary should be the same share of the model's.
  """

  def make():
    lm = small_lm(model, num_layers, vocab_size, long)
    pairs = [block_update(XLA, lm, n, long // n) for n in (short, long)]
    programs = [compile_for(jax.jit(fn), *args) for fn, args in pairs]
    facts = {"temporary_bytes": [p.temporary_bytes for p in programs]}
    calls = [functools.partial(p.call, *args) for p, (_, args) in zip(programs, pairs, strict=True)]
    return Pair(*calls, facts, tolerance=None)

  sizes = dict(num_layers=num_layers, vocab_size=vocab_size, short=short, long=long)
  return Case(f"length {model} L={short} -> {long}", MODELS[model] | sizes, make)


def prefill(model: str, prompt: int, slots: int) -> Case:
  """One layer's attention of a prompt into an empty cache."""
  m = MODELS[model]

  def make():
    _, heads, kv_heads, head_dim = m.values()
    cache, new = (1, 1, kv_heads, slots, head_dim), (1, kv_heads, prompt, head_dim)
    shapes = ((1, heads, prompt, head_dim), cache, cache, new, new)

    def program(way: backend.Backend):
      def run(q, cached_k, cached_v, k, v, length):
        mask = masks.Cached(length, jnp.zeros_like(length), num_causal=prompt)
        plan = way.plan(mask, prompt, slots + prompt)
        layer = lambda x: parts.StackedLayer(x, jnp.int32(0))
        return way.attend(q, (layer(cached_k), k), (layer(cached_v), v), plan)

      return run

    return compiled(program(TILES), program(XLA), (*normal(*shapes), jnp.zeros((1,), jnp.int32)))

  return Case(f"prefill {model} {prompt} tokens", m | dict(prompt=prompt, slots=slots), make)


CASES = [
  *(
    over_cache(model, slots, used, tokens)
    for model in ("110M", "135M", "15M", "260K")
    for slots in (128, 512, 1024, 4096)
    for tokens in (1, 16)
    for used in (100, slots // 2, slots)
    if used <= slots and not (used == slots // 2 and slots == 128)
  ),
  over_cache("15M", 1024, 100, 1, batch=16),
  over_cache("15M", 1024, 1024, 1, batch=16),
  *(prefill(model, n, n) for model in ("15M", "110M") for n in (256, 1024, 4096)),
  *(
    training_attention(model, length, max(1, 1024 // length))
    for model in ("15M", "110M")
    for length in (128, 256, 512, 1024, 2048)
  ),
  *(update("15M", 2, 10_667, n, max(1, 1024 // n)) for n in (128, 256, 512, 1024, 2048)),
  update_length("15M", 2, 10_667, 256, 2048),  # a third of the layers and of the vocabulary
  update_length("110M", 2, 5_333, 256, 2048),  # a sixth
]


def largest_difference(a: Any, b: Any) -> float:
  """Of two trees, as a share of the largest number of each leaf."""
  shares = [0.0]
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    shares.append(float(np.max(np.abs(x - y)) / max(np.max(np.abs(x)), 1e-30)))
  return max(shares)


def seconds(call: Callable[[], Any], times: int) -> tuple[float, float]:
  """(processor, wall) seconds of one call."""
  cpu, wall = time.process_time(), time.perf_counter()
  for _ in range(times):
    last = call()
  jax.block_until_ready(last)
  return (time.process_time() - cpu) / times, (time.perf_counter() - wall) / times


def measure(case: Case, turns: int, lasting: float, about: dict[str, Any]) -> dict[str, Any]:
  """The record of a case: `turns` measurements of each side, each of about `lasting` seconds.

  `about` is the provenance of all cases, taken before the first record changes the tree.
  """
  pair = case.make()
  results = [jax.block_until_ready(call()) for call in (pair.before, pair.after)]
  difference = None
  if pair.tolerance is not None:
    difference = largest_difference(*results)
    if not difference <= pair.tolerance:
      raise RuntimeError(f"{case.name}: before and after differ by {difference:.2g}")
  del results
  times = max(1, math.ceil(lasting / max(seconds(pair.before, 1)[0], 1e-6)))
  found = []
  for turn in range(turns):
    order = (0, 1) if turn % 2 == 0 else (1, 0)
    of = dict((side, seconds((pair.before, pair.after)[side], times)) for side in order)
    found.append((of[0], of[1]))
  line = {"name": case.name, "shapes": case.shapes, "turns": turns, "calls": times}
  for i, clock in enumerate(("cpu", "wall")):
    ratio = summarise([after[i] / before[i] for before, after in found])
    line[clock] = {
      "before_seconds": summarise([before[i] for before, _ in found]).median,
      "after_seconds": summarise([after[i] for _, after in found]).median,
      "ratio": ratio.median,
      "low": ratio.low,
      "high": ratio.high,
    }
  return line | {"largest_difference": difference} | pair.facts | about


def show(line: dict[str, Any]) -> str:
  cpu, wall = line["cpu"], line["wall"]
  return (
    f"{line['name']}: {cpu['before_seconds'] * 1e3:.2f} -> {cpu['after_seconds'] * 1e3:.2f} ms of "
    f"processor time, {cpu['ratio']:.2f} ({cpu['low']:.2f}-{cpu['high']:.2f}); by the clock "
    f"{wall['ratio']:.2f} ({wall['low']:.2f}-{wall['high']:.2f})"
  )


def main(cases: Sequence[Case] = CASES) -> int:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--only", default="", help="beginnings of names, separated by commas")
  parser.add_argument("--list", action="store_true", help="name the cases and stop")
  parser.add_argument("--turns", type=int, default=9, help="measurements of each side")
  parser.add_argument("--lasting", type=float, default=0.2, help="seconds per measurement")
  parser.add_argument("--out", type=pathlib.Path, default=OUT, help="JSON lines; added to")
  args = parser.parse_args()
  chosen = [case for case in cases if case.name.startswith(tuple(args.only.split(",")))]
  if not chosen:
    parser.error(f"no case begins with {args.only!r}: see --list")
  if args.list:
    print("\n".join(case.name for case in chosen))
    return 0
  lines, about = record.JsonLines(args.out), record.provenance()
  for case in chosen:
    line = measure(case, args.turns, args.lasting, about)
    lines.append(line)
    print(show(line), flush=True)
    jax.clear_caches()
  return 0


if __name__ == "__main__":
  sys.exit(main())
