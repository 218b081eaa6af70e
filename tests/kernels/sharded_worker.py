"""Run by test_sharded in a process with four devices: TPU kernels, interpreted, on a mesh."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sbdjax import masks
from sbdjax.kernels import backend, sharded
from sbdjax.lm import make_lm
from sbdjax.train.parallel import BATCH_SPEC, ParallelConfig, make_mesh, shardings
from tests import models

BATCH, LENGTH = 4, 12


def trained(lm, params, tokens, segments):
  """Loss and gradients of packed rows, whose documents differ."""
  docs = masks.document_bounds(segments)
  mask = masks.SBDTrain(3, docs, max_block_size=4)
  positions = jnp.tile(models.positions(BATCH, LENGTH), 2)
  both = jnp.concatenate([tokens, (tokens + 1) % 12], axis=1)

  def loss(params):
    hidden, _ = lm.apply(params, both, positions_BxT=positions, mask=mask)
    return jnp.mean(jax.nn.log_softmax(lm.logits(params, hidden))[..., 1])

  return jax.value_and_grad(loss)(params)


def decoded(lm, params, tokens, segments):
  """Logits of a window over a cache that a first window has filled."""
  length = segments.sum(axis=1) % 5
  cache = lm.init_cache(BATCH, 20)
  for start in (0, 4):
    mask = masks.Cached(start * jnp.ones_like(length), length % 3, num_causal=2)
    at = models.positions(BATCH, 4) + start
    window = tokens[:, start : start + 4]
    hidden, cache = lm.apply(params, window, positions_BxT=at, mask=mask, cache=cache)
  return lm.logits(params, hidden)


def both(lm, *args):
  return trained(lm, *args), decoded(lm, *args)


def main():
  assert jax.device_count() == 4
  # The devices are no TPUs, but the interpreter stands in for them.
  backend._RUNS_ON["pallas_tpu"] = lambda *_: True
  make = lambda name: make_lm(models.config(num_layers=1), name)
  params = models.random_params(make("xla"))
  tokens = models.tokens(BATCH, LENGTH)
  segments = (np.arange(LENGTH) < np.array([[3], [5], [12], [8]])).astype(np.int32)
  expected = jax.jit(lambda *args: both(make("xla"), *args))(params, tokens, segments)
  mesh = make_mesh(ParallelConfig(fsdp=2, tensor=2))
  rows = NamedSharding(mesh, BATCH_SPEC)
  run = jax.jit(
    sharded.within(mesh, lambda *args: both(make("pallas_tpu"), *args)),
    in_shardings=(shardings(params, mesh), rows, rows),
    out_shardings=NamedSharding(mesh, P()),
  )
  with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(uninitialized_memory="nan")):
    program = str(run.trace(params, tokens, segments).jaxpr)
    got = jax.block_until_ready(run(params, tokens, segments))
  for kernel in ("flash_forward", "flash_dq", "flash_dkv", "decode"):
    assert f"name={kernel}" in program, kernel
  # Forward, two gradients, and two windows, each on a half of the rows and of the heads.
  assert program.count("shard_map") >= 5
  for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-4)


if __name__ == "__main__":
  main()
