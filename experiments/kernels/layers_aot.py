"""Do stacked layers cost a copy of their weights? python experiments/kernels/layers_aot.py

Compiles a loop of cached forwards (logits and the write to the cache included), as decoding has it,
for devices that are not here: with layers stacked and scanned, and with separate ones as
`nn.prepare` makes them on a CPU, not transposed. Adds a line of JSON per program to --out.
A target whose compile-only client is not installed is skipped, as in aot.py.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import os
import pathlib
import re
from typing import Any

# Programs for devices that are not here can be written to the cache but not read back.
os.environ.update(JAX_PLATFORMS="cpu", JAX_ENABLE_COMPILATION_CACHE="0")
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from sbdjax import cache as kv_cache
from sbdjax import masks
from sbdjax.appending import append_line
from sbdjax.bench import aot
from sbdjax.bench.shapes import MODELS, shape
from sbdjax.bench.timing import compile_for
from sbdjax.evals import record
from sbdjax.kernels import sharded
from sbdjax.lm import LM, make_lm
from sbdjax.nn.transformer import TransformerConfig
from sbdjax.train import topology

LAYERS, SLOTS = 4, 1024
LLAMA_8B = shape(128_256, LAYERS, 4096, 32, 8, 14_336) | dict(tie_embeddings=False)
SHAPES = {"110M": MODELS["110M"], "8B": LLAMA_8B}
OUT = pathlib.Path(__file__).with_suffix(".jsonl")
ITEM_BYTES = {"bf16": 2, "f32": 4}
# Instructions that make no buffer: they name one, or their "-done" has the result.
NO_BUFFER = re.compile(r"parameter|get-tuple-element|bitcast|tuple|constant|while|.*-start")
INSTRUCTION = re.compile(r"\s+(?:ROOT )?%\S+ = (.*?) ([a-z][\w-]*)\((?=%|\)|\d)(.*)")
ARRAY = re.compile(r"(\w+)\[([\d,]*)\]((?:\{[^}]*\})?)")


def separate(stacked: Any) -> Any:
  """Stacked layers as a tuple of them."""
  return tuple(jax.tree.map(lambda x, n=n: x[n], stacked) for n in range(LAYERS))


def dims_of(layer: Any) -> set[tuple[int, ...]]:
  """Sorted sizes above 1 of a layer's matrices, with heads apart and as one axis; stacked, too."""
  shapes = [x.shape for x in jax.tree.leaves(layer) if len(x.shape) > 1]
  shapes += [m for s in shapes for m in ((math.prod(s[:-1]), s[-1]), (s[0], math.prod(s[1:])))]
  return {tuple(sorted(s)) for s in shapes + [(LAYERS, *s) for s in shapes]}


def copied(hlo: str, dims: set[tuple[int, ...]], trips: int) -> dict[str, Any]:
  """Arrays of the size of a layer's weights that a loop of forwards writes; `trips`: of the loop within.

  Returns:
    Bytes per forward: of copies to device memory, of copies to memory on the chip (a TPU's prefetch),
    and of products not yet summed (one row times small weights on a GPU); and the instructions,
    with how often the text has each. What is written before the loop is named, and not counted.
  """
  names = re.split(r"^(?:ENTRY )?%([\w.-]+) \(.*$", hlo, flags=re.MULTILINE)[1:]
  bodies = dict(zip(names[::2], names[1::2], strict=True))
  inside = set(re.findall(r"(?:calls|to_apply)=%([\w.-]+)", hlo))  # no buffers of their own
  loops = set(re.findall(r"body=%([\w.-]+)", hlo))
  found = {"copied_bytes": 0, "prefetched_bytes": 0, "product_bytes": 0, "written": {}}
  for name in sorted(bodies.keys() - inside):
    times = 0 if name not in loops else 1 if " while(" in bodies[name] else trips
    where = {0: " once", 1: ""}.get(times, " per layer")
    for made in filter(None, map(INSTRUCTION.match, bodies[name].splitlines())):
      called = re.findall(r"calls=%([\w.-]+)", made[3])
      multiplies = any(" multiply(" in bodies[x] for x in called)
      for dtype, sizes, layout in [] if NO_BUFFER.fullmatch(made[2]) else ARRAY.findall(made[1]):
        found_dims = [int(n) for n in sizes.split(",") if n]
        if dtype not in ITEM_BYTES or tuple(sorted(n for n in found_dims if n > 1)) not in dims:
          continue
        kind = "prefetched" if "S(1)" in layout else "product" if multiplies else "copied"
        found[f"{kind}_bytes"] += math.prod(found_dims) * ITEM_BYTES[dtype] * times
        label = f"{kind} {dtype}[{sizes}]" + where
        found["written"][label] = found["written"].get(label, 0) + 1
  return found


def decode(lm: LM, params: Any, cache: Any, tokens: jax.Array, forwards: jax.Array) -> Any:
  """The last window of tokens and the cache, after `forwards` forwards of as many tokens each."""
  width = tokens.shape[1]

  def step(_: jax.Array, carry: tuple) -> tuple:
    tokens, cache = carry
    where = cache.length_B[:, None] + jnp.arange(width)
    mask = masks.Cached(cache.length_B, jnp.zeros(1, jnp.int32), width)
    hidden, cache = lm.apply(params, tokens, positions_BxT=where, mask=mask, cache=cache)
    tokens = jnp.argmax(lm.logits(params, hidden), axis=-1).astype(tokens.dtype)
    return tokens, kv_cache.commit(cache, jnp.full(1, width))

  return jax.lax.fori_loop(0, forwards, step, (tokens, cache))


def measure(name: str, width: int, form: str, device: Any) -> dict[str, Any]:
  """What the compiler says of one program."""
  sizes = SHAPES[name] | dict(num_layers=LAYERS, mask_id=0)
  lm = make_lm(TransformerConfig(**sizes, param_dtype="bfloat16", compute_dtype="bfloat16"))
  params = jax.eval_shape(lm.init, jax.random.key(0))
  layers = jax.eval_shape(separate, params["layers"])
  if form == "separate":
    params = {**params, "layers": layers}
  cache = jax.eval_shape(lambda: lm.init_cache(1, SLOTS))
  integers = [jax.ShapeDtypeStruct(s, jnp.int32) for s in ((1, width), ())]
  mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,), devices=[device])
  place = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, P()))
  run = jax.jit(sharded.within(mesh, functools.partial(decode, lm)), donate_argnums=1)
  program = compile_for(run, *jax.tree.map(place, (params, cache, *integers)))
  return {
    "bytes_accessed": aot.bytes_accessed(program),  # the body of a loop is counted once
    "temporary_bytes": program.temporary_bytes,
    "code_bytes": program.call.memory_analysis().generated_code_size_in_bytes,
    "layer_weight_bytes": sum(x.size * 2 for x in jax.tree.leaves(layers)),
  } | copied(program.call.as_text(), dims_of(layers[0]), LAYERS if form == "stacked" else 1)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--targets", default="v5e:2x2,h200:1", help="separated by commas")
  parser.add_argument("--out", type=pathlib.Path, default=OUT, help="JSON lines")
  args = parser.parse_args()
  about = {"provenance": record.provenance()}  # before anything that git knows is written
  for target in args.targets.split(","):
    where = topology.parse(target)
    if where.missing:
      print(f"{target}: skipped: {where.missing}")
      continue
    for name, width, form in itertools.product(SHAPES, (1, 16), ("stacked", "separate")):
      line = dict(target=target, model=name, layers=LAYERS, slots=SLOTS, width=width, form=form)
      line |= measure(name, width, form, where.devices()[0])
      print(json.dumps(line), flush=True)
      append_line(args.out, json.dumps(line | about))


if __name__ == "__main__":
  main()
