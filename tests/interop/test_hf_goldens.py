"""Published implementations' float32 logits of every family, from their own files."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax import masks
from sbdjax.interop import load_pretrained
from tests import models
from tests.helpers import golden_file, goldens
from tests.interop.hf_models import without

TOLERANCE = 1e-4
FAMILIES = (
  "llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt2legacy", "esm", "sdar", "dream", "llada"
)  # fmt: skip


def sets_of(name):
  """The sets (A, B, ...) in which the files of `name` are there."""
  return [path.name.removeprefix(f"{name}_") for path in goldens(f"{name}_*")]


NAMES = [f"hf_{family}_{s}" for family in FAMILIES for s in sets_of(f"hf_{family}")]
SDAR = [
  f"freedave_sdar_{name}_{s}"
  for name in ("main", "sharp", "eos")
  for s in sets_of(f"freedave_sdar_{name}")
]
ESM = [name for name in NAMES if name.startswith("hf_esm_")]
GPT2 = [name for name in NAMES if name.startswith("hf_gpt2_")]


def family_of(name):
  return name.split("_")[1]


def folder_of(name):
  return golden_file(name, "config.json").parent


@functools.cache
def opened(name):
  return load_pretrained(folder_of(name))


def logits_of(model, tokens, mask):
  @jax.jit
  def run(params, tokens, mask):
    hidden, _ = model.lm.apply(
      params, tokens, positions_BxT=models.positions(*tokens.shape), mask=mask
    )
    return model.lm.logits(params, hidden)

  return np.asarray(run(model.params, tokens, mask))


def mask_of(model, key, attention_mask=None):
  """The rule of the reference's forward: by the key of its logits, else by the family."""
  if attention_mask is not None:
    return masks.Full(jnp.asarray(attention_mask.sum(axis=1)))
  rules = {
    "logits_causal": masks.Causal(),
    "logits_block4": masks.BlockCausal(4),
    "causal": masks.Causal(),
    "full": masks.Full(),
  }
  return rules.get(key, rules.get(model.generation.attention))


@pytest.mark.parametrize("name", NAMES)
def test_logits(name, record_property):
  model = opened(name)
  expected = np.load(folder_of(name) / "expected.npz")
  padding = expected["attention_mask"] if "attention_mask" in expected else None
  keys = [key for key in expected if key.startswith("logits")]
  for key in keys:
    ours = logits_of(model, expected["input_ids"], mask_of(model, key, padding))
    mask_id = model.lm.config.mask_id
    assert mask_id is None or (ours[..., mask_id] == -1e30).all()
    error = np.abs(without(mask_id, ours) - without(mask_id, expected[key]))
    worst = float(error.max() if padding is None else error[padding == 1].max())
    record_property(key, worst)
    assert worst <= TOLERANCE, (key, worst)
  assert len(keys) == (2 if family_of(name) == "sdar" else 1)


@pytest.mark.parametrize("name", ESM)
def test_padding_and_token_dropout_cases_are_among_them(name):
  """The file must hold what it is trusted with: padded rows and every share of masks."""
  model, expected = opened(name), np.load(folder_of(name) / "expected.npz")
  assert model.lm.config.token_dropout and model.lm.config.pad_id == 1
  assert (expected["attention_mask"] == (expected["input_ids"] != 1)).all()
  assert expected["mask_fraction"].min() == 0 and expected["mask_fraction"].max() > 0.8
  assert expected["attention_mask"].min() == 0


@pytest.mark.parametrize("name", ESM)
def test_a_padded_row_equals_the_row_alone(name):
  model, expected = opened(name), np.load(folder_of(name) / "expected.npz")
  row = int(expected["attention_mask"].sum(axis=1).argmin())
  n = int(expected["attention_mask"][row].sum())
  alone = logits_of(model, expected["input_ids"][row : row + 1, :n], masks.Full())
  mask_id = model.lm.config.mask_id
  theirs = without(mask_id, expected["logits"][row, :n])
  np.testing.assert_allclose(without(mask_id, alone[0]), theirs, atol=TOLERANCE)


@pytest.mark.parametrize("name", GPT2)
def test_the_two_namings_of_gpt2_give_the_same_parameters(name):
  legacy = opened(name.replace("gpt2", "gpt2legacy"))
  jax.tree.map(np.testing.assert_array_equal, opened(name).params, legacy.params)


@pytest.mark.parametrize("name", [*NAMES, *SDAR])
def test_what_decoding_needs_to_know(name):
  model, family = opened(name), family_of(name)
  settings = json.loads((folder_of(name) / "config.json").read_text())
  how = model.generation
  assert how.mask_id == model.lm.config.mask_id == settings.get("mask_token_id")
  assert how.eos_ids == tuple(i for i in [settings.get("eos_token_id")] if i is not None)
  attention = {"sdar": "block_causal", "dream": "full", "llada": "full", "esm": "full"}
  assert how.attention == attention.get(family, "causal")
  assert how.shifted == (family == "dream")
  assert how.block_size == settings.get("block_size")
  assert model.tokenizer is None
