"""Tables of n-grams: what is counted, and the file."""

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from sbdjax.data import ngrams
from sbdjax.data.corpus import Corpus
from sbdjax.errors import DataError


def corpus(*texts, prompts=None):
  tokens = np.concatenate([np.array(t, np.uint16) for t in texts])
  return Corpus(tokens, np.array([len(t) for t in texts]), prompts)


def contents(table, vocab):
  """{run: token} of all runs that the table knows, found by asking for each."""
  known = dict(zip(table.key_N.tolist(), table.token_N.tolist(), strict=True))
  found = {}
  for n in range(1, table.longest + 1):
    for run in np.ndindex(*(vocab,) * n):
      key = int(ngrams.hashed([np.uint32([t]) for t in reversed(run)])[0])
      if key in known:
        found[run] = known[key]
  return found


def test_the_token_that_followed_most_often_is_kept():
  table = ngrams.count([corpus([1, 2, 3, 1, 2, 4, 1, 2, 3]), corpus([2, 4])], 5, longest=2)
  assert contents(table, 5) == {
    (1,): 2, (2,): 3, (3,): 1, (4,): 1, (1, 2): 3, (2, 3): 1, (2, 4): 1, (3, 1): 2, (4, 1): 2,
  }  # fmt: skip


def test_prompts_are_runs_but_follow_none():
  table = ngrams.count([corpus([1, 2, 3], [4, 0], prompts=np.array([2, 0]))], 5, longest=2)
  assert contents(table, 5) == {(2,): 3, (1, 2): 3, (4,): 0}
  with pytest.raises(DataError, match="no text after"):
    ngrams.count([corpus([1, 2], prompts=np.array([2]))], 5)


def test_of_too_many_the_most_frequent_stay():
  text = corpus([1, 2, 1, 2, 1, 3])
  full = contents(ngrams.count([text], 4, longest=2), 4)
  few = contents(ngrams.count([text], 4, longest=2, entries=3), 4)
  assert few == {run: full[run] for run in [(1,), (2,), (1, 2)]} and len(full) == 4


def test_numpy_and_jax_hash_alike_and_hashes_spread():
  runs = np.random.default_rng(0).integers(0, 50_000, (3, 20_000)).astype(np.uint32)
  ours = ngrams.hashed(list(runs))
  np.testing.assert_array_equal(ours, ngrams.hashed([jnp.asarray(r) for r in runs]))
  assert ours.dtype == np.uint32 and len(np.unique(ours)) > 19_990
  for part in (ours >> np.uint32(24), ours & np.uint32(255)):
    assert np.bincount(part, minlength=256).max() < 2 * 20_000 / 256
  # Runs of different lengths have hashes of their own.
  assert ngrams.hashed([np.uint32([0])]) != ngrams.hashed([np.uint32([0])] * 2)


def test_a_file_is_read_as_it_was_written(tmp_path):
  table = ngrams.count([corpus([1, 2, 3, 1, 2, 4])], 70_000)
  ngrams.write(tmp_path / "x", table)
  found = ngrams.read(tmp_path / "x")
  np.testing.assert_array_equal(found.key_N, table.key_N)
  np.testing.assert_array_equal(found.token_N, table.token_N)
  assert (found.longest, found.vocab_size) == (3, 70_000) and found.token_N.dtype == np.int32


GOOD = {"key": np.array([1, 5], np.uint32), "token": np.array([3, 4], np.uint16)}
HEADER = {"sbdjax_ngrams": '{"longest": 2, "vocab_size": 5}'}


@pytest.mark.parametrize(
  "tensors, header, message",
  [
    (GOOD, {}, "`python -m sbdjax ngrams` wrote"),
    ({"key": GOOD["key"]}, HEADER, "`python -m sbdjax ngrams` wrote"),
    ({**GOOD, "key": GOOD["key"][::-1].copy()}, HEADER, "not ascending"),
    ({**GOOD, "key": GOOD["key"].astype(np.int32)}, HEADER, "not ascending"),
    ({**GOOD, "token": GOOD["token"][:1]}, HEADER, "not ascending"),
    ({**GOOD, "token": np.array([3, 5], np.uint16)}, HEADER, "outside its vocabulary of 5"),
    (GOOD, {"sbdjax_ngrams": '{"longest": "two", "vocab_size": 5}'}, "longest"),
    (GOOD, {"sbdjax_ngrams": '{"longest": 900, "vocab_size": 5}'}, "900 tokens, not of 1 to 8"),
    ({**GOOD, "token": np.array([3, 2**32], np.int64)}, HEADER, "outside its vocabulary of 5"),
  ],
)
def test_other_files_are_refused(tmp_path, tensors, header, message):
  safetensors.numpy.save_file(tensors, tmp_path / "x", header)
  with pytest.raises(DataError, match=message):
    ngrams.read(tmp_path / "x")


def test_damaged_files_are_refused(tmp_path):
  with pytest.raises(DataError, match="as a table of n-grams|is missing|no such|not there"):
    ngrams.read(tmp_path / "nothing")
  safetensors.numpy.save_file(GOOD, tmp_path / "x", HEADER)
  (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:-3])
  with pytest.raises(DataError, match="as a table of n-grams|is missing|no such|not there"):
    ngrams.read(tmp_path / "x")
