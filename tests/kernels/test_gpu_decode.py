"""The GPU kernel that attends over a cache, interpreted, against float64 on the same rounded inputs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax import masks
from sbdjax.kernels import decode, gpu_decode
from sbdjax.kernels.parts import StackedLayer
from tests.jit import quick_jit
from tests.kernels import mask_cases
from tests.kernels.gpu_interpreter import interpreted, needs_interpreter
from tests.kernels.mask_cases import DECODING
from tests.reference import visibility

WINDOWS = {n: c for n, c in DECODING.items() if c.num_queries <= decode.MAX_WINDOW}


@quick_jit
def run(rule, q, keys, values):
  """`decode.decode`; the cache is layer 1 of 3, and the other layers hold NaN."""

  def in_layers(x):
    others = jnp.full_like(x, jnp.nan)
    return StackedLayer(jnp.stack([others, x, others]), jnp.int32(1))

  slots, new = keys[0].shape[2], q.shape[2]
  plan = decode.plan(rule, new, slots + new, block_k=gpu_decode.block_k(slots))
  keys, values = (in_layers(keys[0]), keys[1]), (in_layers(values[0]), values[1])
  partial = functools.partial(gpu_decode.partial, register_operands=False)
  return decode.decode(q, keys, values, plan, partial=partial, scale=q.shape[-1] ** -0.5)


def check(case, heads, kv_heads, head_dim=64):
  """What is rounded to bfloat16: the weights before they are multiplied, and the result."""
  arrays = mask_cases.inputs(case, heads, kv_heads, head_dim)[:3]
  q, k, v = (jnp.asarray(x, jnp.bfloat16) for x in arrays)
  slots = case.num_keys - case.num_queries
  cut = lambda x: (x[:, :, :slots], x[:, :, slots:])
  with interpreted():
    out = jax.block_until_ready(run(case.rule, q, cut(k), cut(v)))
  exact = [np.asarray(x, np.float64) for x in (q, k, v)]
  expected, _, probs = mask_cases.attention(*exact, case.visible, head_dim**-0.5)
  terms = probs @ np.repeat(abs(exact[2]), heads // kv_heads, axis=1)
  error = abs(np.asarray(out, np.float64) - expected)
  allowed = 1.05 * 2.0**-8 * (abs(expected) + terms) + 1e-5
  assert (error <= allowed).all(), f"{np.max(error / allowed)} times what is allowed"


@pytest.fixture
def small_parts(monkeypatch):
  """Two parts, of one tile and of two for the two warpgroups, as a long cache has of many."""
  monkeypatch.setattr(gpu_decode, "_MULTIPROCESSORS", 4)
  monkeypatch.setattr(gpu_decode, "_TILES_A_PART", 1)
  jax.clear_caches()


@needs_interpreter
def test_window_with_unequal_rows(small_parts):
  """An empty cache beside a full one, which is no whole number of tiles; one layer of three."""
  check(WINDOWS["cached_5_2"], 2, 1)


@needs_interpreter
@pytest.mark.long
@pytest.mark.parametrize("name", WINDOWS)
def test_every_window(name):
  check(WINDOWS[name], 4, 2)


@needs_interpreter
@pytest.mark.long
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (6, 2), (12, 1)])
def test_query_heads_share_key_heads_in_order(small_parts, heads, kv_heads):
  """12 query heads of 16 tokens are 192 rows: two blocks of two warpgroups side by side."""
  check(WINDOWS["cached_16_0"], heads, kv_heads)


@needs_interpreter
@pytest.mark.long
def test_more_tiles_than_stages():
  """The ring of tiles in shared memory goes round."""
  slots, new, committed = 620, 2, (620, 600)
  rule = masks.Cached(jnp.array(committed), jnp.zeros(2, jnp.int32), num_causal=0)
  visible = np.stack([visibility.cached(slots, new, n, 0, 0) for n in committed])
  check(mask_cases.Case("cached", rule, new, slots + new, visible), 1, 1, 128)


@needs_interpreter
@pytest.mark.long
def test_heads_that_fill_part_of_their_columns():
  check(WINDOWS["cached_5_2"], 3, 1, 48)


def test_parts_fill_the_multiprocessors():
  assert gpu_decode.num_parts(512, 8) == 16
  assert gpu_decode.num_parts(512, 200) == 1
  assert gpu_decode.num_parts(16, 8) == 4
  assert gpu_decode.num_parts(1, 1) == 1
