"""The key/value cache: what a write may touch, and what only commit moves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax import cache

N, B, K, S, DH = 2, 3, 2, 5, 4


def entries(count, seed=0):
  """(k, v), each [N, B, K, T, Dh], no entry zero."""
  rng = np.random.default_rng(seed)
  shape = (N, B, K, count, DH)
  return tuple((rng.uniform(1, 2, shape)).astype(np.float32) for _ in range(2))


def empty(dtype="float32"):
  return cache.init(N, B, S, K, DH, dtype)


write = jax.jit(cache.write)


def naive_write(buffer, new, slots):
  """Entry by entry; a slot outside the buffer is skipped."""
  out = np.array(buffer)
  for b in range(B):
    for t, slot in enumerate(slots[b]):
      if 0 <= slot < S:
        out[:, b, :, slot] = new[:, b, :, t]
  return out


def test_a_new_cache_is_empty_and_shaped_as_documented():
  c = empty("bfloat16")
  assert c.k.shape == c.v.shape == (N, B, K, S, DH) and c.capacity == S
  assert c.k.dtype == c.v.dtype == jnp.bfloat16
  assert c.length_B.dtype == jnp.int32 and not c.length_B.any()


@pytest.mark.parametrize(
  "slots",
  [
    [[0, 1], [3, 4], [2, 0]],  # another place for each row, any order
    [[4, 5], [5, 6], [99, 3]],  # over the end of a full buffer
    [[-1, 0], [-5, -6], [2, -1]],  # negative: must not wrap around
    [[5, 5], [-1, 7], [6, 5]],  # nothing at all is stored
  ],
  ids=["scattered", "beyond", "negative", "all dropped"],
)
def test_write_stores_entries_in_their_slots_and_drops_the_rest(slots):
  before = empty().replace(k=entries(S, 1)[0], v=entries(S, 1)[1], length_B=jnp.array([1, 3, 5]))
  k, v = entries(2, 2)
  after = write(before, k, v, jnp.array(slots))
  np.testing.assert_array_equal(after.k, naive_write(before.k, k, slots))
  np.testing.assert_array_equal(after.v, naive_write(before.v, v, slots))
  np.testing.assert_array_equal(after.length_B, before.length_B)


def test_the_write_for_tpu_is_the_same_write():
  new, slots = entries(3)[0], jnp.array([[4, 0, 7], [2, 3, 4], [5, 1, 6]])
  written = jax.jit(cache._put_vectors)(empty().k, new, slots)
  np.testing.assert_array_equal(written, naive_write(empty().k, new, slots))


def test_only_commit_moves_length_and_it_moves_each_row_by_its_own():
  k, v = entries(3)
  written = write(empty(), k, v, jnp.broadcast_to(jnp.arange(3), (B, 3)))
  assert not written.length_B.any()
  committed = cache.commit(cache.commit(written, jnp.array([3, 0, 1])), jnp.array([0, 0, 2]))
  np.testing.assert_array_equal(committed.length_B, [3, 0, 3])
  np.testing.assert_array_equal(committed.k, written.k)


def test_committed_entries_survive_drafts_up_to_and_over_the_end_of_the_buffer():
  """Drafts of three at `length`, rejected again and again, rows at other fills, one row full."""
  k, v = entries(S, 3)
  c = write(empty(), k, v, jnp.broadcast_to(jnp.arange(S), (B, S)))
  lengths = np.array([2, 4, 5])
  c = cache.commit(c, jnp.asarray(lengths))
  for seed in range(3):
    draft = entries(3, 10 + seed)
    c = write(c, *draft, c.length_B[:, None] + jnp.arange(3))
    for row, n in enumerate(lengths):
      np.testing.assert_array_equal(c.k[:, row, :, :n], k[:, row, :, :n])
      np.testing.assert_array_equal(c.v[:, row, :, :n], v[:, row, :, :n])
      np.testing.assert_array_equal(c.k[:, row, :, n:], draft[0][:, row, :, : S - n])
  np.testing.assert_array_equal(c.length_B, lengths)


def test_write_casts_to_the_cache_dtype():
  k, v = entries(1)
  c = write(empty("bfloat16"), k, v, jnp.zeros((B, 1), jnp.int32))
  assert c.k.dtype == jnp.bfloat16
  np.testing.assert_array_equal(c.k[:, :, :, 0], jnp.asarray(k[:, :, :, 0], jnp.bfloat16))


@pytest.mark.parametrize("capacity", [3, 5, 8])
def test_a_resized_cache_holds_the_same_first_slots(capacity):
  k, v = entries(S)
  before = empty().replace(k=k, v=v, length_B=jnp.array([1, 2, 3]))
  after, same = cache.resized(before, capacity), min(S, capacity)
  assert after.capacity == capacity
  for found, want in ((after.k, k), (after.v, v)):
    np.testing.assert_array_equal(found[:, :, :, :same], want[:, :, :, :same])
    assert not found[:, :, :, same:].any()
  np.testing.assert_array_equal(after.length_B, before.length_B)
