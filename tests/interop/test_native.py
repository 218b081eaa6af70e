"""The package's own file: bit-exact there and back, whole or not at all, and damage named."""

import dataclasses
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from sbdjax.errors import CheckpointError
from sbdjax.interop import native
from sbdjax.nn.rope import RopeScaling
from tests import models

SETTINGS = {"tokenizer": "tok512", "eos_ids": [1, 2], "made_by": "a command, with 'quotes' and ü"}


def write(path, **changes):
  lm = models.lm_of(**changes)
  params = models.random_params(lm)
  native.write(path, lm.config, params, SETTINGS)
  return lm, params


@pytest.mark.parametrize(
  "changes",
  [
    dict(mask_id=12),
    dict(param_dtype="bfloat16", qkv_bias=True, qk_norm=True, tie_embeddings=False),
    dict(rope_scaling=RopeScaling(8.0, 1.0, 4.0, 16), head_dim=6, rope_interleaved=True),
  ],
  ids=["float32", "bfloat16", "rope"],
)
def test_there_and_back_bit_for_bit(tmp_path, changes):
  lm, params = write(tmp_path / "m.safetensors", **changes)
  config, found, settings = native.read(tmp_path / "m.safetensors")
  assert config == lm.config and settings == SETTINGS
  assert jax.tree.structure(found) == jax.tree.structure(jax.device_get(params))
  for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(found), strict=True):
    assert a.dtype == b.dtype and a.shape == b.shape
    assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_values_that_are_easily_lost_survive(tmp_path):
  lm, params = write(tmp_path / "m.safetensors")
  odd = np.array([-0.0, np.inf, np.nan, 1e-45], np.float32)
  params["embedding"] = params["embedding"].at[0, :4].set(odd)
  native.write(tmp_path / "m.safetensors", lm.config, params, {})
  found = native.read(tmp_path / "m.safetensors")[1]["embedding"]
  assert np.asarray(found).tobytes() == np.asarray(params["embedding"]).tobytes()


def test_transposed_views_are_written_in_order(tmp_path):
  lm, params = write(tmp_path / "m.safetensors")
  expected = np.asarray(params["embedding"])
  params["embedding"] = np.asfortranarray(expected)
  native.write(tmp_path / "m.safetensors", lm.config, params, {})
  np.testing.assert_array_equal(native.read(tmp_path / "m.safetensors")[1]["embedding"], expected)


def test_a_failed_write_leaves_the_old_file_and_nothing_half_written(tmp_path, monkeypatch):
  path = tmp_path / "m.safetensors"
  write(path)
  before = path.read_bytes()

  def full_disk(self, data):
    with open(self, "wb") as file:
      file.write(data[:100])
    raise OSError(28, "No space left on device")

  monkeypatch.setattr("pathlib.Path.write_bytes", full_disk)
  with pytest.raises(CheckpointError, match="No space left") as error:
    write(path, num_layers=1)
  monkeypatch.undo()
  assert str(path) in str(error.value) and "\n" not in str(error.value)
  assert path.read_bytes() == before and os.listdir(tmp_path) == ["m.safetensors"]


def tensors_of(path):
  with safetensors.safe_open(str(path), framework="numpy") as file:
    return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, -1])
def test_truncated_files_are_refused(tmp_path, keep):
  path = tmp_path / "m.safetensors"
  write(path)
  data = path.read_bytes()
  path.write_bytes(data[: int(keep * len(data)) if keep == 0.5 else keep])
  refused(path)


def refused(path, words=None):
  with pytest.raises(CheckpointError, match=words) as error:
    native.read(path)
  assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_missing_and_foreign_files_are_refused(tmp_path):
  refused(tmp_path / "nowhere.safetensors", "nowhere")
  text = tmp_path / "text.safetensors"
  text.write_text("this is no checkpoint at all, just a line of text\n" * 10)
  refused(text)
  foreign = tmp_path / "foreign.safetensors"
  safetensors.numpy.save_file({"x": np.zeros(3, np.float32)}, foreign)
  refused(foreign, "not written by this package")


@pytest.mark.parametrize(
  "header",
  [
    "not json {",
    json.dumps([1, 2]),
    json.dumps({"tokenizer": "tok512"}),
    json.dumps({"model": {"vocab_size": 3}}),
    json.dumps({"model": {**dataclasses.asdict(models.config()), "colour": "red"}}),
    json.dumps({"model": {**dataclasses.asdict(models.config()), "num_heads": 0}}),
    json.dumps({"model": "large"}),
    json.dumps({"model": {**dataclasses.asdict(models.config()), "rope_scaling": {"factor": 2}}}),
  ],
  ids=["no json", "list", "no model", "fields missing", "unknown", "senseless", "text", "rope"],
)
def test_settings_that_describe_no_model_are_refused(tmp_path, header):
  path = tmp_path / "m.safetensors"
  write(path)
  tensors, _ = tensors_of(path)
  safetensors.numpy.save_file(tensors, path, {"sbdjax": header})
  refused(path)


def test_bfloat16_is_read_as_such(tmp_path):
  write(tmp_path / "m.safetensors", param_dtype="bfloat16")
  _, params, _ = native.read(tmp_path / "m.safetensors")
  assert params["embedding"].dtype == jnp.bfloat16
