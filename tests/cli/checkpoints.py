"""Small checkpoints for tests of the verbs."""

import jax

from sbdjax.data import assets
from sbdjax.interop import llama2c, load_pretrained, native, save_pretrained
from sbdjax.interop.mask_token import add_mask_token
from tests import models

VOCABULARY = 513  # tok512 and a mask token


def write_tiny(path, *, mask_id=512, seed=0, eos_ids=(1, 2)):
  """A random model of one layer over tok512; returns `path` as text."""
  lm = models.lm_of(vocab_size=VOCABULARY, mask_id=mask_id, num_layers=1)
  params = models.random_params(lm, seed)
  settings = dict(tokenizer="tok512", eos_ids=list(eos_ids), made_by="a test")
  native.write(path, lm.config, jax.device_get(params), settings)
  return str(path)


def write_stories_with_mask(path):
  """stories260K with an untrained mask token; returns `path` as text."""
  config, params = add_mask_token(*llama2c.read(assets.path("stories260K.bin")))
  settings = dict(tokenizer="tok512", eos_ids=[1, 2], made_by="a test")
  native.write(path, config, jax.device_get(params), settings)
  return str(path)


def write_shallow(path):
  """The last layer of stories260K-sbd as a model; returns `path` as text."""
  save_pretrained(path, models.shallow(load_pretrained("stories260K-sbd")))
  return str(path)
