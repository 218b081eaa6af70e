"""Every config is usable, and those of published models have their number of parameters."""

import pathlib

import jax
import numpy as np
import pytest

from sbdjax.cli import train
from sbdjax.cli.common import load_config
from sbdjax.lm import make_lm
from sbdjax.nn.transformer import TransformerConfig

CONFIGS = pathlib.Path(__file__).resolve().parent.parent / "configs"

# Parameters as their makers count them (a tied head once); 3B: those of Llama 3.2 3B, whose shape
# it is.
PUBLISHED = {
  "sbd_llama31_8b.py": 8_030_261_248,
  "sbd_llama31_8b.py:8": 8_030_261_248,
  "sbd_qwen3_8b.py": 8_190_735_360,
  "sbd_3b.py:pretrain": 3_212_749_824,
  "sbd_3b.py:sft": 3_212_749_824,
}


def settings(name):
  return train.parse_settings(load_config(str(CONFIGS / name), {}, train.schema))


@pytest.mark.parametrize("name", PUBLISHED)
def test_full_size_models_have_the_published_number_of_parameters(name):
  lm = make_lm(TransformerConfig(**settings(name).model))
  shapes = jax.eval_shape(lm.init, jax.random.key(0))
  assert sum(int(np.prod(x.shape)) for x in jax.tree.leaves(shapes)) == PUBLISHED[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_their_batches_are_those_of_the_paper(name):
  found = settings(name)
  assert found.train.batch_size * found.data.seq_len == 2**21
  shards = found.parallel.fsdp * max(1, found.parallel.data)
  assert found.train.batch_size % (shards * found.train.accumulation) == 0
