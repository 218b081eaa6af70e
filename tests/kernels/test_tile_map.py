"""Tile maps and their visits against the dense mask."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax import masks
from sbdjax.errors import UsageError
from sbdjax.kernels import tile_map, tpu_visits
from tests.jit import quick_jit
from tests.kernels.mask_cases import DECODING, TRAINING
from tests.reference import visibility

BLOCKS = (16, 24)
CASES = {**TRAINING, **DECODING}
# Of other rules these differ in what makes their intervals, not in the map.
OFTEN = ("full_lengths", "sbd_documents", "jacobi_clean_window", "draft_tree")
parametrize_cases = pytest.mark.parametrize(
  "name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.long) for n in CASES]
)


@functools.partial(quick_jit, static_argnums=(1, 2, 3))
def make(rule, num_queries, num_keys, blocks):
  tiles = tile_map.make(rule, num_queries, num_keys, block_q=blocks[0], block_k=blocks[1])
  return tiles, tpu_visits.make(tiles.row_count, tiles.row_tiles, tiles.row_full)


def tiles_of(visible, block_q, block_k):
  """(any, all) pairs visible of every tile, padding seen by nobody."""
  batch, num_queries, num_keys = visible.shape
  padded = np.pad(visible, ((0, 0), (0, -num_queries % block_q), (0, -num_keys % block_k)))
  tiles = padded.reshape(batch, padded.shape[1] // block_q, block_q, -1, block_k)
  return tiles.any((2, 4)), tiles.all((2, 4))


def check_lists(count, tiles, full, some, every):
  for i in np.ndindex(some.shape[:-1]):
    n = int(count[i])
    expected = np.flatnonzero(some[i])
    assert list(tiles[i][:n]) == list(expected)
    assert list(full[i][:n]) == list(every[i][expected].astype(int))
    assert (tiles[i][n:] == (expected[-1] if n else 0)).all()


def check(tiles, visible):
  """`tiles` against bool [B, T, S]."""
  rows = len(tiles.bounds)
  some, every = tiles_of(visible[:rows], tiles.block_q, tiles.block_k)
  assert rows > 1 or (visible == visible[:1]).all()
  check_lists(tiles.row_count, tiles.row_tiles, tiles.row_full, some, every)
  columns = some.swapaxes(1, 2), every.swapaxes(1, 2)
  check_lists(tiles.col_count, tiles.col_tiles, tiles.col_full, *columns)
  pairs = tuple(np.asarray(tiles.bounds)[:, i] for i in range(tiles.bounds.shape[1]))
  seen = np.asarray(masks.visible(pairs, np.arange(visible.shape[2])))
  num_queries = visible.shape[1]
  np.testing.assert_array_equal(seen[:, :num_queries], visible[:rows])
  assert not seen[:, num_queries:].any()


@parametrize_cases
def test_the_map_is_the_mask(name):
  case = CASES[name]
  tiles, visits = make(case.rule, case.num_queries, case.num_keys, BLOCKS)
  tiles, visits = jax.tree.map(np.asarray, (tiles, visits))
  check(tiles, case.visible)
  for b in range(len(tiles.bounds)):
    walked = tpu_visits.unpack(visits.codes[b, : visits.count[b]])
    listed = [
      (i, int(j))
      for i in range(len(tiles.row_count[b]))
      for j in tiles.row_tiles[b, i, : max(1, tiles.row_count[b, i])]
    ]
    assert list(zip(walked.outer.tolist(), walked.inner.tolist(), strict=True)) == listed
    outer = walked.outer.tolist()
    firsts = [i == 0 or outer[i - 1] != outer[i] for i in range(len(outer))]
    assert walked.first.tolist() == firsts
    assert walked.last.tolist() == [*firsts[1:], True]
    assert walked.live.tolist() == [bool(tiles.row_count[b, i]) for i in outer]
    some, every = tiles_of(case.visible[b : b + 1], *BLOCKS)
    assert walked.full.tolist() == [bool(every[0, i, j]) for i, j in listed]
    after = tpu_visits.unpack(visits.codes[b, visits.count[b] :])
    assert not any(np.any(x) for x in (after.live, after.first, after.last, after.full))
    assert (after.outer == outer[-1]).all() and (after.inner == walked.inner[-1]).all()


def test_one_compilation_serves_every_block_size():
  length = 37
  traced = chex.assert_max_traces(
    lambda k: tile_map.make(masks.SBDTrain(k), 2 * length, 2 * length, block_q=16, block_k=8), n=1
  )
  run = quick_jit(traced)
  for k in (2, 5, 16):
    tiles = jax.tree.map(np.asarray, run(jnp.int32(k)))
    check(tiles, visibility.sbd_train(length, k)[None])


def test_a_training_mask_leaves_most_tiles_out():
  """The figure of merit: 1088 of 4096 tiles of 128 at L = 4096, k = 16, of which 96 are partial."""
  tiles, _ = jax.tree.map(np.asarray, make(masks.SBDTrain(16), 8192, 8192, (128, 128)))
  visited = np.arange(64) < tiles.row_count[0][:, None]
  count, full = visited.sum(), tiles.row_full[0][visited].sum()
  assert (count, count - full) == (1088, 96)
  assert tiles.col_count.sum() == count


def test_more_tiles_than_a_visit_can_name_are_refused():
  n = tpu_visits.MAX_TILES + 1
  tiles = jax.ShapeDtypeStruct((1, 1, n), jnp.int32)
  with pytest.raises(UsageError, match="tiles"):
    jax.eval_shape(tpu_visits.make, jax.ShapeDtypeStruct((1, 1), jnp.int32), tiles, tiles)
