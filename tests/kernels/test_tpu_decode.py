"""Attention over a cache: the merge of parts, and the TPU kernel interpreted, against float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax.kernels import decode, flash, tpu_decode
from sbdjax.kernels.parts import StackedLayer
from tests.jit import quick_jit
from tests.kernels import mask_cases
from tests.kernels.interpreter import interpreted
from tests.kernels.mask_cases import DECODING

WINDOWS = {n: c for n, c in DECODING.items() if c.num_queries <= decode.MAX_WINDOW}


@functools.partial(quick_jit, static_argnums=(4, 5))
def run(rule, q, keys, values, partial, layers):
  """`decode.decode`; the cache is layer 1 of 3 where `layers`, whose others hold NaN."""

  def as_part(x):
    others = jnp.full_like(x, jnp.nan)
    return StackedLayer(jnp.stack([others, x, others]), jnp.int32(1)) if layers else x

  t, s = q.shape[2], sum(x.shape[2] for x in keys)
  plan = decode.plan(rule, t, s, block_k=128)
  parts = [(as_part(cache), new) for cache, new in (keys, values)]
  return decode.decode(q, *parts, plan, partial=partial, scale=q.shape[-1] ** -0.5)


def check(case, partial, heads, kv_heads, layers=False):
  q, k, v, _ = mask_cases.inputs(case, heads, kv_heads, 8)
  slots = case.num_keys - case.num_queries
  cut = lambda x: (x[:, :, :slots], x[:, :, slots:])
  out = jax.block_until_ready(run(case.rule, q, cut(k), cut(v), partial, layers))
  expected = mask_cases.attention(q, k, v, case.visible, 8**-0.5)[0]
  np.testing.assert_allclose(out, expected, atol=1e-5)


def in_tiles(q, k_NxBxKxSxDh, v_NxBxKxSxDh, layer, cache, scale):
  """A `decode.Partial` in as many parts as the cache has tiles."""
  k, v = k_NxBxKxSxDh[layer], v_NxBxKxSxDh[layer]
  parts = []
  for first in range(0, k.shape[2], cache.block_k):
    size = min(cache.block_k, k.shape[2] - first)
    bounds = jnp.clip(cache.bounds - first, 0, size)
    piece = slice(first, first + size)
    parts.append(decode.dense_partial(q, k[:, :, piece], v[:, :, piece], bounds, scale))
  o, lse = zip(*parts, strict=True)
  return jnp.concatenate(o, axis=2), jnp.concatenate(lse, axis=2)


@pytest.mark.parametrize("name", ["draft_tree", pytest.param("cached_5_2", marks=pytest.mark.long)])
def test_parts_are_merged_to_the_whole(name):
  check(WINDOWS[name], in_tiles, 4, 2)


def test_a_query_that_sees_nothing_in_any_part_gives_zeros():
  o = jnp.zeros((1, 1, 3, 2, 4))
  assert not np.asarray(decode.merge(o, jnp.full((1, 1, 3, 2), flash.EMPTY))).any()


def test_tpu_window_with_unequal_rows():
  """An empty cache beside a full one, which is no whole number of tiles; one layer of three."""
  with interpreted():
    check(WINDOWS["cached_5_2"], tpu_decode.partial, 4, 2, layers=True)


@pytest.mark.long
@pytest.mark.parametrize("name", WINDOWS)
def test_tpu_every_window(name):
  with interpreted():
    check(WINDOWS[name], tpu_decode.partial, 4, 2)


@pytest.mark.long
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (6, 2), (4, 1)])
def test_tpu_query_heads_share_key_heads_in_order(heads, kv_heads):
  with interpreted():
    check(WINDOWS["cached_16_0"], tpu_decode.partial, heads, kv_heads)


def test_heads_of_a_step_divide_the_heads_and_fit():
  assert tpu_decode._heads_a_step(8, 2**17) == 8
  assert tpu_decode._heads_a_step(8, 2**18) == 4
  assert tpu_decode._heads_a_step(6, 2**18) == 3
  assert tpu_decode._heads_a_step(5, 2**22) == 1
