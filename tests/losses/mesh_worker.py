"""token_nll with its rows on two devices; run by test_cross_entropy with fake ones."""

import re

import jax
import jax.numpy as jnp
import numpy as np

from sbdjax.kernels import sharded
from sbdjax.lm import suppress
from sbdjax.losses.cross_entropy import token_nll
from tests.losses.test_cross_entropy import HEAD, HIDDEN, MASK, NEEDED, TARGETS, WEIGHTS


def total(hidden):
  logits_fn = lambda h: suppress(h @ HEAD.T, MASK)
  nll, _ = token_nll(logits_fn, hidden, TARGETS, WEIGHTS * NEEDED, chunk=4)
  return jnp.sum(nll * WEIGHTS)


def main():
  mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
  rows = jax.NamedSharding(mesh, jax.P("data"))
  program = sharded.within(mesh, jax.value_and_grad(total))
  cut = jax.jit(program, in_shardings=rows, out_shardings=(None, rows)).lower(HIDDEN).compile()
  found = cut(jax.device_put(HIDDEN, rows))
  for a, b in zip(jax.value_and_grad(total)(HIDDEN), found, strict=True):
    np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)
  crossing = re.findall(r"= (\w+\[.*?\])\S* (?:all-|collective-|reduce-scatter)", cut.as_text())
  assert crossing and all(shape.endswith("[]") for shape in crossing), crossing


if __name__ == "__main__":
  main()
