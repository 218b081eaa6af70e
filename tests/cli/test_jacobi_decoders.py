"""Jacobi decoding from flags: every setting a method reads changes what is run, no other does."""

import jax
import numpy as np
import pytest
from sbdjax.cli.decoders import DecoderConfig

from sbdjax.cli import decoders
from sbdjax.errors import UsageError
from tests import models

LM = models.lm_of(mask_id=12)
PARAMS = models.random_params(LM)
ROWS = np.array([[1, 2, 3], [4, 5, 0]], np.int32), np.array([3, 2], np.int32)

# field -> another value than the one in the configs below
OTHER = {
  "block_size": "5",
  "guess": "vocabulary",
  "num_blocks": "2",
  "spawn_ratio": "0.2",
  "eager": "true",
  "pool_size": "7",
  "n_gram": "2",
  "num_candidates": "1",
  "draft_mode": "batch",
}
POOLS = {
  "none": {},
  "ngrams": {"pool": "ngrams", "pool_size": "9", "n_gram": "3", "num_candidates": "2"},
  "points": {"pool": "points", "num_candidates": "2"},
}
NAMES = {
  "jacobi": {},
  "jacobi_window": {},
  "jacobi_multiblock": {"num_blocks": "3", "spawn_ratio": "0.5"},
}


def flags(name, pool):
  return {"name": name, "max_tokens": "6", "block_size": "4"} | NAMES[name] | POOLS[pool]


def program(texts):
  """The sampler as traced: its first state, and what a step computes."""
  sampler = decoders.make_sampler(LM, decoders.from_flags(texts), (3,))
  init = jax.make_jaxpr(sampler.init, return_shape=True)(PARAMS, *ROWS, jax.random.key(0))
  return str(init[0]), str(jax.make_jaxpr(sampler.step)(PARAMS, init[1]))


@pytest.mark.long
@pytest.mark.parametrize(
  "name, pool",
  [
    ("jacobi_multiblock", "ngrams"),
    pytest.param("jacobi", "none", marks=pytest.mark.long),
    pytest.param("jacobi", "points", marks=pytest.mark.long),
    pytest.param("jacobi_window", "ngrams", marks=pytest.mark.long),
  ],
)
def test_each_setting_it_reads_has_an_effect(name, pool):
  texts = flags(name, pool)
  reads = decoders.METHODS[name].reads(decoders.from_flags(texts))
  assert set(OTHER) >= set(reads) - {"pool", "verify"}
  plain = program(texts)
  for field in OTHER:
    changed = program(texts | {field: OTHER[field]})
    assert (changed != plain) == (field in reads), field
  assert (
    program(texts | {"temperature": "1", "verify": "exact_match"})
    != program(texts | {"temperature": "0.5", "verify": "exact_match"})
    != plain
  )


@pytest.mark.parametrize(
  "texts, message",
  [
    ({"name": "jacobi", "pool": "ngram"}, "decoder.pool='ngram' .did you mean 'ngrams'"),
    ({"name": "jacobi", "guess": "txt"}, "decoder.guess='txt' .did you mean 'text'"),
    (
      {"name": "jacobi", "pool": "ngrams", "n_gram": "1"},
      "n_gram=1, num_candidates=3: n_gram must",
    ),
    ({"name": "jacobi", "pool": "points", "num_candidates": "0"}, "a pool of 1 points"),
    ({"name": "jacobi_multiblock", "num_blocks": "0"}, "num_blocks=0"),
    ({"name": "jacobi_multiblock", "spawn_ratio": "2"}, "spawn_ratio=2.0"),
    ({"name": "jacobi", "verify": "resample"}, "decoder.temperature above 0"),
    (
      {"name": "jacobi", "verify": "resample", "temperature": "1", "pool": "ngrams"},
      "recycled drafts need the verify rule exact_match",
    ),
  ],
)
def test_bad_settings(texts, message):
  with pytest.raises(UsageError, match=message) as caught:
    decoders.make_sampler(LM, decoders.from_flags(texts), ())
  assert "\n" not in str(caught.value)


def test_records_hold_what_mattered():
  shared = {"name", "max_tokens", "temperature", "block_size", "guess", "pool", "verify"}
  assert set(decoders.settings_of(DecoderConfig("jacobi"))) == shared
  recycled = {"pool_size", "n_gram", "num_candidates", "draft_mode"}
  config = DecoderConfig("jacobi_multiblock", pool="ngrams")
  blocks = {"num_blocks", "spawn_ratio", "eager"}
  assert set(decoders.settings_of(config)) == shared | recycled | blocks
