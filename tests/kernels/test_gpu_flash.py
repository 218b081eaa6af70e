"""The GPU kernels, interpreted, against float64 on the same rounded inputs.

The kernels round the probabilities and the gradient of the scores to the inputs' dtype before they
multiply, and their results once more; everything else is float32. So the error of a result is at
most the unit of rounding times the sum of the sizes of its terms and its own, and that is what is
allowed here, element by element.
"""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax.errors import UsageError
from sbdjax.kernels import flash, gpu_common, gpu_flash, gpu_flash_backward, tile_map
from tests.jit import quick_jit
from tests.kernels import mask_cases
from tests.kernels.gpu_interpreter import interpreted, needs_interpreter
from tests.kernels.mask_cases import DECODING, TRAINING

CASES = {**TRAINING, **DECODING}
UNIT = {jnp.bfloat16: 2.0**-8, jnp.float16: 2.0**-11}  # half the distance from 1 to the next number
KERNELS = {
  "forward": gpu_flash.forward,
  "dq": gpu_flash_backward.dq,
  "dkv": gpu_flash_backward.dkv,
}


@functools.partial(quick_jit, static_argnums=0)
def run(name, rule, *arrays):
  q, k = arrays[:2]
  tiles = tile_map.make(rule, q.shape[2], k.shape[2], block_q=128, block_k=128)
  kernel = functools.partial(KERNELS[name], register_operands=False)
  return kernel(*arrays, gpu_common.prepare(tiles), q.shape[-1] ** -0.5)


class Exact:
  """Results and gradients of one case in float64, each with the sum of the sizes of its terms."""

  def __init__(self, case, q, k, v, w):
    q, k, v, w = (np.asarray(x, np.float64) for x in (q, k, v, w))
    kv_heads, scale = k.shape[1], q.shape[-1] ** -0.5
    group = q.shape[1] // kv_heads
    wide_k, wide_v = (np.repeat(x, group, axis=1) for x in (k, v))
    o, self.lse, p = mask_cases.attention(q, k, v, case.visible, scale)
    self.delta = np.sum(w * o, axis=-1)
    ds = scale * p * (w @ wide_v.swapaxes(2, 3) - self.delta[..., None])
    over_group = lambda x: x.reshape(x.shape[0], kv_heads, group, *x.shape[2:]).sum(2)
    keys = lambda x, y: over_group(x.swapaxes(2, 3) @ y)
    self.forward = ((o, p @ abs(wide_v)),)
    self.dq = ((ds @ wide_k, abs(ds) @ abs(wide_k)),)
    self.dkv = ((keys(ds, q), keys(abs(ds), abs(q))), (keys(p, w), keys(p, abs(w))))


def interpret(name, case, heads, kv_heads, head_dim, dtype=jnp.bfloat16):
  q, k, v, w = (jnp.asarray(x, dtype) for x in mask_cases.inputs(case, heads, kv_heads, head_dim))
  exact = Exact(case, q, k, v, w)
  seen = np.isfinite(exact.lse)
  lse = np.where(seen, exact.lse, flash.EMPTY)
  arrays = (q, k, v)
  if name != "forward":
    arrays += (w, jnp.float32(lse), jnp.float32(exact.delta))
  with interpreted():
    results = jax.block_until_ready(run(name, case.rule, *arrays))
  if name == "forward":
    out, got_lse = results
    np.testing.assert_allclose(got_lse, lse, rtol=1e-6, atol=1e-5)
    assert (np.asarray(got_lse)[~seen] == np.float32(flash.EMPTY)).all()
    results = (out,)
  results = results if isinstance(results, tuple) else (results,)
  for got, (expected, terms) in zip(results, getattr(exact, name), strict=True):
    assert got.dtype == dtype
    allowed = 1.05 * UNIT[dtype] * (abs(expected) + terms) + 1e-5
    error = abs(np.asarray(got, np.float64) - expected)
    assert (error <= allowed).all(), f"{np.max(error / allowed)} times what is allowed"


@needs_interpreter
@pytest.mark.parametrize(
  ("name", "case", "heads"),
  [
    ("forward", "full_lengths", 1),  # a row that sees nothing, full tiles, and a tile cut short
    ("dkv", "sbd_documents", 2),  # rows with other documents, two query heads a key head
  ],
)
def test_short_rows(name, case, heads):
  interpret(name, CASES[case], heads, 1, 64)


@needs_interpreter
@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", KERNELS)
def test_every_rule(name, case):
  interpret(name, CASES[case], 2, 1, 64)


@needs_interpreter
@pytest.mark.long
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (3, 1)])
@pytest.mark.parametrize("name", KERNELS)
def test_query_heads_share_key_heads_in_order(name, heads, kv_heads):
  interpret(name, CASES["jacobi_window"], heads, kv_heads, 64)


@needs_interpreter
@pytest.mark.long
@pytest.mark.parametrize("name", KERNELS)
def test_heads_of_128_in_float16(name):
  interpret(name, CASES["sbd_16"], 2, 1, 128, jnp.float16)


@needs_interpreter
@pytest.mark.long
@pytest.mark.parametrize("name", KERNELS)
def test_heads_that_fill_part_of_their_columns(name):
  interpret(name, CASES["sbd_5"], 2, 1, 24)


@needs_interpreter
@pytest.mark.long
@pytest.mark.parametrize("name", KERNELS)
def test_more_tiles_than_stages(name):
  """The ring of tiles in shared memory goes round."""
  length = 5 * 128 + 9
  visible = np.broadcast_to(np.tril(np.ones((length, length), bool)), (2, length, length))
  case = mask_cases.Case("causal", CASES["causal"].rule, length, length, visible)
  interpret(name, case, 1, 1, 128)


def test_long_tiles_start_first():
  causal = tile_map.make(CASES["causal"].rule, 640, 640, block_q=128, block_k=128)
  plan = gpu_common.prepare(causal)
  np.testing.assert_array_equal(plan.row_order, [[4, 3, 2, 1, 0]])
  np.testing.assert_array_equal(plan.col_order, [[0, 1, 2, 3, 4]])


@pytest.mark.skipif(jax.__version_info__[:2] >= (0, 11), reason="this JAX is new enough")
def test_an_old_jax_is_named():
  with pytest.raises(UsageError, match=r"needs JAX 0\.11"):
    importlib.import_module("sbdjax.kernels.gpu")


@needs_interpreter
@pytest.mark.parametrize(
  ("dtype", "head_dim", "message"),
  [(jnp.float32, 64, "not float32: change the compute dtype"), (jnp.bfloat16, 80, "not 80: set")],
)
def test_what_cannot_be_computed_is_named(dtype, head_dim, message):
  x = jnp.zeros((1, 1, 128, head_dim), dtype)
  with pytest.raises(UsageError, match=message):
    run("forward", CASES["causal"].rule, x, x, x)
