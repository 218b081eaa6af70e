"""An adapter's own file: there and back, the base it belongs to, and what is refused."""

import dataclasses
import hashlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors

from sbdjax.errors import CheckpointError, UsageError
from sbdjax.interop import adapter_file, load_pretrained, native, save_pretrained
from sbdjax.interop.mask_token import add_mask_token
from sbdjax.nn import adapter
from sbdjax.nn.adapter import AdapterConfig
from tests import models
from tests.cli import checkpoints
from tests.interop import hf_models

SETTINGS = dict(tokenizer="tok512", eos_ids=[1, 2], made_by="a test")
SMALL = AdapterConfig(2, 3.0, ("q", "down"))


def adapted(config, base, seed=1):
  """`base` with an adapter of random numbers: (config, parameters)."""
  config = dataclasses.replace(config, adapter=SMALL)
  ours = adapter.split(models.random_params(models.lm_of(**dataclasses.asdict(config)), seed))[1]
  return config, adapter.join(base, ours)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
  """(base without a mask token as a file, the adapter's file, config and parameters of both)."""
  folder = tmp_path_factory.mktemp("adapter")
  plain = models.config(vocab_size=512)
  params = models.random_params(models.lm_of(vocab_size=512))
  native.write(folder / "base.safetensors", plain, params, SETTINGS)
  config, params = adapted(*add_mask_token(plain, params))
  adapter_file.write(folder / "a.safetensors", config, params)
  return folder / "base.safetensors", folder / "a.safetensors", config, params


def test_there_and_back(written):
  base, file, config, params = written
  model = load_pretrained(base, adapter=file)
  assert model.lm.config == config
  assert model.generation.mask_id == model.tokenizer.mask_id == 512
  assert jax.tree.structure(model.params) == jax.tree.structure(params)
  jax.tree.map(np.testing.assert_array_equal, model.params, params)


def test_half_precision_is_half_the_file(written, tmp_path):
  base, file, config, params = written
  adapter_file.write(tmp_path / "half.safetensors", config, params, dtype="bfloat16")
  count = sum(x.size for x in jax.tree.leaves(adapter.split(params)[1]))
  for path, itemsize in ((file, 4), (tmp_path / "half.safetensors", 2)):
    with safetensors.safe_open(str(path), framework="numpy") as f:
      tensors = [f.get_tensor(name) for name in f.keys()]  # noqa: SIM118
    assert sum(x.nbytes for x in tensors) == itemsize * count
  found = load_pretrained(base, adapter=tmp_path / "half.safetensors").params["mask_embedding"]
  assert found.dtype == jnp.float32
  np.testing.assert_allclose(found, params["mask_embedding"], rtol=1e-2)


def test_the_hash_is_what_its_description_says(written):
  _, file, config, params = written
  flat = {}
  for path, x in jax.tree_util.tree_leaves_with_path(params):
    flat[jax.tree_util.keystr(path, simple=True, separator="/")] = np.asarray(x)
  digest = hashlib.sha256()
  for name in sorted(flat):
    if "_adapter_" in name or name == "mask_embedding":
      continue
    x = flat[name][:512] if name == "embedding" else flat[name]
    # Round to nearest, ties to even, of the upper 16 bits.
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    digest.update(f"{name}{x.shape}".encode() + rounded.tobytes())
  assert adapter_file.read(file).base_sha256 == digest.hexdigest()


def test_the_same_base_in_other_clothes(written):
  """In half precision, padded, with its mask token, with another adapter, in pieces."""
  _, _, config, params = written
  expected = adapter_file.base_hash(config, params)
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
  assert adapter_file.base_hash(config, half) == expected
  plain, base = (
    dataclasses.replace(config, adapter=None, mask_id=None, vocab_size=512),
    {
      **adapter.split(params)[0],
      "embedding": params["embedding"][:512],
    },
  )
  assert adapter_file.base_hash(plain, base) == expected
  assert adapter_file.base_hash(*add_mask_token(plain, base, multiple_of=64)) == expected
  masked = {**params, "embedding": params["embedding"].at[512].set(0.0)}
  assert adapter_file.base_hash(config, masked) == expected
  assert adapter_file.base_hash(*adapted(config, adapter.split(params)[0], seed=9)) == expected


def test_large_parameters_are_hashed_in_pieces(written, monkeypatch):
  _, _, config, params = written
  expected = adapter_file.base_hash(config, params)
  monkeypatch.setattr(adapter_file, "_PIECE", 100)
  assert adapter_file.base_hash(config, params) == expected


def test_a_reserved_token_as_mask(tmp_path):
  """The base has no mask token: the adapter says which of its tokens it is."""
  plain = models.config(vocab_size=513)
  base = models.random_params(models.lm_of(vocab_size=513))
  native.write(tmp_path / "base.safetensors", plain, base, SETTINGS)
  masked, params = add_mask_token(plain, base, token_id=7)
  config, params = adapted(masked, params)
  adapter_file.write(tmp_path / "a.safetensors", config, params)
  model = load_pretrained(tmp_path / "base.safetensors", adapter=tmp_path / "a.safetensors")
  assert model.lm.config == config and model.tokenizer.mask_id == 7


@pytest.mark.parametrize(
  "path", [("layers", "mlp", "up_kernel"), ("embedding",), ("final_norm", "scale")]
)
def test_other_weights_are_refused(written, tmp_path, path):
  base, file, _, _ = written
  config, params, settings = native.read(base)
  place = params
  for name in path[:-1]:
    place = place[name]
  place[path[-1]] = np.array(place[path[-1]])
  place[path[-1]].flat[-1] += 0.1
  native.write(tmp_path / "other.safetensors", config, params, settings)
  with pytest.raises(CheckpointError, match="belongs to other weights") as error:
    load_pretrained(tmp_path / "other.safetensors", adapter=file)
  assert str(file) in str(error.value) and "\n" not in str(error.value)


def test_a_base_in_float16_is_told_to_be_opened_otherwise(written):
  """The checksum is of the weights rounded to bfloat16, which float16 rounds otherwise."""
  base, file, *_ = written
  with pytest.raises(CheckpointError, match="open it in float32, bfloat16 or mixed"):
    load_pretrained(base, adapter=file, dtype="float16")


def test_what_does_not_belong_together_is_refused(written, tmp_path):
  base, file, config, params = written
  other_mask = checkpoints.write_tiny(tmp_path / "mask.safetensors", mask_id=3)
  with pytest.raises(CheckpointError, match="mask token 512, the base has 3"):
    load_pretrained(other_mask, adapter=file)
  with pytest.raises(CheckpointError, match="is no adapter"):
    load_pretrained(base, adapter=base)
  with pytest.raises(CheckpointError, match="is an adapter, no model"):
    load_pretrained(file)
  with pytest.raises(CheckpointError, match="cannot read"):
    load_pretrained(base, adapter=tmp_path / "nowhere.safetensors")
  native.write(tmp_path / "both.safetensors", config, params, SETTINGS)
  both = load_pretrained(tmp_path / "both.safetensors")
  assert both.lm.config == config
  with pytest.raises(UsageError, match="has an adapter already"):
    load_pretrained(tmp_path / "both.safetensors", adapter=file)
  with pytest.raises(UsageError, match="`convert` writes it"):
    save_pretrained(tmp_path / "hf", both)
  bare = dataclasses.replace(config, adapter=None)
  with pytest.raises(UsageError, match="no adapter to write"):
    adapter_file.write(tmp_path / "none.safetensors", bare, params)
  tensors = adapter.split(params)[1]
  for header in ("{", "{}", json.dumps({"adapter": {"rank": 0}})):
    native.write_tensors(tmp_path / "odd.safetensors", tensors, {native.ADAPTER: header})
    with pytest.raises(CheckpointError, match="describes an adapter this version"):
      load_pretrained(base, adapter=tmp_path / "odd.safetensors")
  header = {
    "adapter": {"rank": 3},
    "mask_id": 512,
    "base_sha256": adapter_file.base_hash(config, params),
  }
  native.write_tensors(tmp_path / "odd.safetensors", tensors, {native.ADAPTER: json.dumps(header)})
  with pytest.raises(CheckpointError, match="k_adapter_a has shape .*missing"):
    load_pretrained(base, adapter=tmp_path / "odd.safetensors")


@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
def test_on_a_hugging_face_directory(family, tmp_path):
  """Saved and opened again, the base is the same one; half precision is no other base."""
  model = hf_models.build(family)
  save_pretrained(tmp_path / "hf", model)
  config, params = adapted(*add_mask_token(model.lm.config, model.params))
  adapter_file.write(tmp_path / "a.safetensors", config, params)
  for dtype in (None, "bfloat16"):
    found = load_pretrained(tmp_path / "hf", adapter=tmp_path / "a.safetensors", dtype=dtype)
    assert found.lm.config.adapter == SMALL
    assert found.params["mask_embedding"].dtype == jnp.float32


def test_a_fresh_adapter_starts_from_the_row_of_the_mask():
  lm = models.lm_of(mask_id=12, adapter=SMALL)
  base = adapter.split(models.random_params(lm))[0]
  params = adapter_file.fresh(lm, base, jax.random.key(0))
  np.testing.assert_array_equal(params["mask_embedding"], base["embedding"][12])
  assert jax.tree.structure(params) == jax.tree.structure(
    jax.eval_shape(lm.init, jax.random.key(0))
  )
  assert not np.any(params["layers"]["attn"]["q_adapter_b"])
  assert np.all(params["layers"]["attn"]["q_adapter_a"] != 0)
