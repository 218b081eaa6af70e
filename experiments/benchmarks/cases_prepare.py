"""What `LM.prepare` is worth on a CPU, and narrow weights: as cpu_losses.py, with the same flags.

python experiments/benchmarks/cases_prepare.py. Models have random weights, and the shapes of
stories260K, llama2.c's 15M and 110M, and SmolLM2-135M.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from unittest import mock

import jax
import jax.numpy as jnp
from cpu_losses import Case, Pair, compiled, main, normal

from sbdjax import cache as kv_cache
from sbdjax import masks
from sbdjax.bench.shapes import MODELS
from sbdjax.bench.timing import compile_for
from sbdjax.decode.base import Limits
from sbdjax.decode.causal.ar import AR
from sbdjax.decode.causal.sbd import SBD
from sbdjax.decode.generate import Decoder
from sbdjax.lm import LM, as_given, make_lm
from sbdjax.nn import prepare, summed
from sbdjax.nn.linear import Transposed
from sbdjax.nn.transformer import TransformerConfig

# Forwards in a program: about a quarter of a second.
FORWARDS = {"260K": 400, "15M": 40, "110M": 6, "135M": 8}


@functools.lru_cache(maxsize=1)
def model(name: str) -> tuple[LM, dict]:
  """The model and its parameters, stacked."""
  lm = make_lm(TransformerConfig(mask_id=0, **MODELS[name]))
  return lm, jax.block_until_ready(jax.jit(lm.init)(jax.random.key(0)))


def forwards(name: str, width: int, slots: int, apart: bool = False) -> Case:
  """Cached forwards one after the other, logits and a write to the cache included.

  Args:
    apart: layers are separate and transposed, whatever `prepare` would decide.
  """

  def make():
    lm, params = model(name)
    large = 0 if apart else prepare._LARGE_LAYER
    with mock.patch.object(prepare, "_LARGE_LAYER", large):
      prepared = lm.prepare(params, width)
    zero = jnp.zeros(1, jnp.int32)
    cache = kv_cache.commit(lm.init_cache(1, slots), zero + slots // 2)

    def step(params, _, carry):
      tokens, cache = carry
      where = cache.length_B[:, None] + jnp.arange(width)
      mask = masks.Cached(cache.length_B, zero, width)
      hidden, cache = lm.apply(params, tokens, positions_BxT=where, mask=mask, cache=cache)
      return jnp.argmax(lm.logits(params, hidden), axis=-1), cache

    def run(params, cache):
      tokens = jnp.zeros((1, width), jnp.int32)
      loop = functools.partial(step, params)
      return jax.lax.fori_loop(0, FORWARDS[name], loop, (tokens, cache))[0]

    programs = [compile_for(jax.jit(run), given, cache) for given in (params, prepared)]
    facts = {
      "forwards": FORWARDS[name],
      "compile_cpu_seconds": [round(p.compile_cpu_seconds, 2) for p in programs],
      "temporary_bytes": [p.temporary_bytes for p in programs],
    }
    sides = zip(programs, (params, prepared), strict=True)
    return Pair(*(functools.partial(p.call, given, cache) for p, given in sides), facts)

  words = "prepare apart" if apart else "prepare"
  return Case(f"{words} {name} {width} tokens {slots} slots", MODELS[name], make)


def decoding(name: str, label: str, method) -> Case:
  """A prompt decoded; the time to compile is not in it, but recorded."""

  def make():
    lm, params = model(name)
    decoders = [Decoder(x, Limits(64)) for x in (lm._replace(prepare=as_given), lm)]

    def run(decoder):
      prompts = [list(range(1, 17))]
      return [r.tokens for r in decoder.generate(method, params, prompts, jax.random.key(0))]

    for decoder in decoders:
      run(decoder)
    facts = {"compile_seconds": [round(d.compile_seconds, 2) for d in decoders]}
    return Pair(*(functools.partial(run, d) for d in decoders), facts)

  return Case(f"decode {name} {label}", MODELS[name], make)


def head(name: str, rows: int) -> Case:
  """Logits of several rows."""

  def make():
    lm, params = model(name)
    prepared = lm.prepare(params, rows)
    hidden = normal((1, rows, lm.config.d_model))[0]
    calls = [
      functools.partial(compile_for(jax.jit(lm.logits), given, hidden).call, given, hidden)
      for given in (params, prepared)
    ]
    return Pair(*calls, {})

  return Case(f"head {name} {rows} rows", MODELS[name], make)


# Weights of half the bytes or a quarter, widened tile by tile. Not in the package.

TILE, PRODUCTS = 64, 16


def from_bits(w: jax.Array) -> jax.Array:
  """float32 of bfloat16 given as uint16; XLA's own conversion is scalar code on a CPU."""
  return jax.lax.bitcast_convert_type(w.astype(jnp.uint32) << 16, jnp.float32)


def narrow_bfloat16(w: jax.Array) -> jax.Array:
  return jax.lax.bitcast_convert_type(w.astype(jnp.bfloat16), jnp.uint16)


def narrow_int8(w: jax.Array) -> jax.Array:
  return jnp.clip(jnp.round(w * 30), -127, 127).astype(jnp.int8)


NARROW: dict[str, tuple[Callable, Callable]] = {
  "bfloat16": (narrow_bfloat16, from_bits),
  "int8": (narrow_int8, lambda w: w.astype(jnp.float32)),
}


def widened(kind: str, inputs: int, outputs: int, rows: int) -> Case:
  """Products with float32 weights as prepared, and with narrow ones widened tile by tile."""
  narrow, widen = NARROW[kind]

  def make():
    x = normal((rows, inputs))[0]
    small = [narrow(w) for w in normal(*[(outputs, inputs)] * PRODUCTS)]
    exact = [widen(w) if rows > 1 else widen(w).T for w in small]

    def before(x, exact, _):
      return [x @ w if rows == 1 else Transposed(w).times(x) for w in exact]

    def after(x, _, small):
      tile = lambda _, w: (None, jnp.einsum("oi,ti->ot", widen(w), x))
      tiles = [w.reshape(-1, TILE, inputs) for w in small]
      return [jax.lax.scan(tile, None, w)[1].reshape(-1, rows).T for w in tiles]

    return compiled(before, after, (x, exact, small))

  shapes = dict(inputs=inputs, outputs=outputs, rows=rows, products=PRODUCTS)
  return Case(f"{kind} {inputs}x{outputs} {rows} rows", shapes, make)


def few_rows(inputs: int, outputs: int, rows: int) -> Case:
  """Products of a few rows by Eigen and as sums, with more weights than a processor's cache holds."""
  count = 2**25 // (inputs * outputs)

  def make():
    x = normal((rows, inputs))[0]
    weights = [Transposed(w) for w in normal(*[(outputs, inputs)] * count)]

    def products(x, weights):
      # Each waits for the one before it.
      for w in weights:
        x = x + 1e-9 * w.times(x).sum(axis=1, keepdims=True)
      return x

    given = weights, prepare.for_sums(weights)
    programs = [compile_for(jax.jit(products), x, ws).call for ws in given]
    sides = (functools.partial(p, x, ws) for p, ws in zip(programs, given, strict=True))
    return Pair(*sides, {})

  shapes = dict(inputs=inputs, outputs=outputs, rows=rows, products=count)
  return Case(f"sums {inputs}x{outputs} {rows} rows", shapes, make)


CASES = [
  *(
    few_rows(inputs, outputs, rows)
    for inputs, outputs in ((576, 960), (576, 3072), (576, 49152), (1536, 576))
    for rows in (2, 3, 4, 5, 6)
    if summed.pays(rows, jax.ShapeDtypeStruct((outputs, inputs), jnp.float32))
  ),
  *(
    forwards(name, width, slots)
    for name, slots in (("260K", 256), ("15M", 256), ("110M", 256), ("110M", 1024), ("135M", 256))
    for width in (1, 4, 8, 16)
  ),
  *(forwards("15M", width, 256, apart=True) for width in (1, 4, 8, 16)),
  *(
    decoding(name, label, method)
    for name in MODELS
    for label, method in (("ar", AR()), ("sbd", SBD(8)))
  ),
  *(head(name, rows) for name in ("15M", "110M", "135M") for rows in (1, 2, 4, 8, 16)),
  *(
    widened(kind, *sizes, rows)
    for kind in NARROW
    for sizes in ((576, 1536), (768, 2048))
    for rows in (1, 8)
  ),
]

if __name__ == "__main__":
  sys.exit(main(CASES))
