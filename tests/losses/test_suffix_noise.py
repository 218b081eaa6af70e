"""The masked-suffix noise: every block keeps its first r tokens, r uniform on 0 .. k - 1."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax import corruption
from sbdjax.errors import UsageError
from sbdjax.losses.sbd import SBDLossConfig

MASK = 99


def _noise(k, rows=600, length=20):
  keys = jax.random.split(jax.random.key(0), rows)
  tokens = jnp.arange(rows * length, dtype=jnp.int32).reshape(rows, length) % 50
  return tokens, *corruption.mask_block_suffixes(keys, tokens, MASK, k)


@pytest.mark.parametrize("k", [1, 3, 4, 7])
def test_every_block_is_a_kept_prefix_and_a_masked_suffix(k):
  tokens, noisy, masked, share = (np.asarray(x) for x in _noise(k))
  np.testing.assert_array_equal(noisy, np.where(masked, MASK, tokens))
  np.testing.assert_allclose(share, masked.mean(axis=1), rtol=1e-6)
  for start in range(0, tokens.shape[1], k):
    block = masked[:, start : start + k].astype(int)
    assert (np.diff(block, axis=1) >= 0).all(), "a masked position is followed by masks only"
    if block.shape[1] == k:
      assert block[:, -1].all(), "r < k: the last token of a whole block is always masked"


def test_the_kept_length_is_uniform():
  k = 4
  _, _, masked, _ = _noise(k)
  kept = k - np.asarray(masked).reshape(-1, k).sum(axis=1)
  counts = np.bincount(kept, minlength=k)
  expected = counts.sum() / k
  # Chi-square with 3 degrees of freedom: 16.3 is its 99.9 % quantile.
  assert len(counts) == k and ((counts - expected) ** 2 / expected).sum() < 16.3


def test_blocks_of_a_row_are_independent():
  _, _, masked, _ = _noise(4)
  kept = 4 - np.asarray(masked).reshape(600, 5, 4).sum(axis=2)
  assert abs(np.corrcoef(kept[:, 0], kept[:, 1])[0, 1]) < 0.15


def test_the_share_must_be_a_probability():
  with pytest.raises(UsageError, match="suffix_fraction"):
    SBDLossConfig(suffix_fraction=1.5)
