"""Run by test_xla_loop in a process with four devices: attention's loops, cut by the compiler."""

import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from sbdjax import masks
from sbdjax.kernels import parts, xla
from tests.kernels.test_xla_loop import attend

BATCH, HEADS, KV_HEADS, LENGTH, HEAD_DIM, SLOTS = 4, 8, 4, 96, 16, 2048
HALVES = P("data", "tensor")


def trained(q, k, v, d_out):
  """Output and gradients under a training mask."""
  rule = masks.SBDTrain(jnp.int32(5))
  out, back = jax.vjp(lambda *x: attend(*x, rule, 16, 16), q, k, v)
  return out, *back(d_out)


def decoded(q, k, v, cached, length):
  """A window over the layers of a stack of caches."""
  plan = xla.plan(masks.Cached(length, jnp.zeros_like(length), 2), 2, SLOTS + 2)

  def layer(q, i):
    return xla.attend(
      q, (parts.StackedLayer(cached, i), k), (parts.StackedLayer(-cached, i), v), plan
    ), None

  return jax.lax.scan(layer, q, jnp.arange(cached.shape[0]))[0]


def check(got, expected):
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(np.reshape(a, b.shape), b, atol=1e-5)


def collectives(program, *args) -> list[str]:
  text = program.lower(*args).compile().as_text()
  return re.findall(r"(all-gather|all-reduce|collective-permute|all-to-all)\(", text)


def main():
  assert jax.device_count() == 4
  mesh = jax.make_mesh((2, 2), ("data", "tensor"), (AxisType.Auto,) * 2)
  place = lambda *spec: NamedSharding(mesh, P(*spec))
  rng = np.random.default_rng(0)
  of = lambda *shape: rng.normal(size=(*shape, HEAD_DIM)).astype(np.float32)

  args = [of(BATCH, heads, LENGTH) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
  expected = jax.jit(trained)(*args)
  cut = jax.jit(trained, in_shardings=4 * (place(*HALVES),), out_shardings=place(*HALVES))
  check(cut(*args), expected)
  assert not collectives(cut, *args)
  check(jax.shard_map(trained, mesh=mesh, in_specs=HALVES, out_specs=HALVES)(*args), expected)
  check(jax.pmap(trained)(*(x[:, None] for x in args)), expected)

  new = [of(BATCH, heads, 2) for heads in (HEADS, KV_HEADS, KV_HEADS)]
  args = (*new, of(3, BATCH, KV_HEADS, SLOTS), np.array([0, 10, 100, 2048], np.int32))
  expected = jax.jit(decoded)(*args)
  shardings = (*3 * (place(*HALVES),), place(None, *HALVES), place("data"))
  cut = jax.jit(decoded, in_shardings=shardings, out_shardings=place(*HALVES))
  check(cut(*args), expected)
  # Which chunks any row sees is all that the devices have to tell each other.
  assert set(collectives(cut, *args)) <= {"all-reduce"}


if __name__ == "__main__":
  main()
