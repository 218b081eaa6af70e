"""The mask token of a next-token model: a row of its own, padded or not, or a reserved token."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers import models as library_models

from sbdjax.data.tokenizers import load_tokenizer
from sbdjax.errors import UsageError
from sbdjax.interop.mask_token import add_mask_token, find_reserved, reserved
from sbdjax.lm import make_lm
from sbdjax.masks import Causal
from tests import models


def probabilities(lm, params):
  tokens = models.tokens(2, 6)

  @jax.jit
  def run(params):
    hidden, _ = lm.apply(params, tokens, positions_BxT=models.positions(2, 6), mask=Causal())
    return jax.nn.softmax(lm.logits(params, hidden))

  return np.asarray(run(params))


@pytest.mark.parametrize(
  ("changes", "multiple_of"),
  [
    (dict(), 1),
    (dict(tie_embeddings=False), 8),
    (dict(mlm_head=True, norm="layer", mlp="gelu"), 8),
  ],
)
def test_new_rows_are_the_mean_and_change_no_prediction(changes, multiple_of):
  plain = models.lm_of(**changes)
  params = models.random_params(plain)
  config, extended = add_mask_token(plain.config, params, multiple_of=multiple_of)
  size = 14 if multiple_of == 1 else 16
  assert (config.vocab_size, config.mask_id, config.unused_rows) == (size, 13, size - 14)
  for name in {"embedding", "head", "head_bias"} & params.keys():
    rows = np.asarray(extended[name])
    assert len(rows) == size
    np.testing.assert_array_equal(rows[:13], params[name])
    for row in rows[13:]:
      np.testing.assert_allclose(row, np.mean(np.asarray(params[name]), axis=0), rtol=1e-5)
  ours = probabilities(make_lm(config), extended)
  np.testing.assert_array_equal(ours[..., 13:], 0.0)
  np.testing.assert_allclose(ours[..., :13], probabilities(plain, params), rtol=2e-5)


def test_the_mean_of_bfloat16_rows_is_taken_in_float32():
  lm = models.lm_of(vocab_size=700, param_dtype="bfloat16")
  params = models.random_params(lm)
  _, extended = add_mask_token(lm.config, params)
  exact = np.asarray(params["embedding"], np.float64).mean(axis=0)
  np.testing.assert_allclose(np.asarray(extended["embedding"][700], np.float64), exact, rtol=0.01)
  assert extended["embedding"].dtype == jnp.bfloat16


def test_a_row_that_is_unused_already_is_taken_first():
  lm = models.lm_of(unused_rows=3)
  config, extended = add_mask_token(lm.config, models.random_params(lm), multiple_of=4)
  assert (config.vocab_size, config.mask_id, config.unused_rows) == (16, 10, 5)
  assert extended["embedding"].shape == (16, 16)
  config, _ = add_mask_token(lm.config, models.random_params(lm))
  assert (config.vocab_size, config.mask_id, config.unused_rows) == (13, 10, 2)


def test_a_reserved_token_keeps_its_row():
  lm = models.lm_of()
  params = models.random_params(lm)
  config, found = add_mask_token(lm.config, params, token_id=7)
  assert (config.mask_id, config.vocab_size) == (7, 13) and found is params


@pytest.mark.parametrize(
  ("arguments", "words"),
  [(dict(token_id=13), "mask_id=13"), (dict(multiple_of=0), "multiple of 0")],
)
def test_senseless_arguments_are_refused(arguments, words):
  lm = models.lm_of()
  with pytest.raises(UsageError, match=words):
    add_mask_token(lm.config, models.random_params(lm), **arguments)


def tokenizer_of(folder, words, special=(), settings=None):
  folder.mkdir()
  library = Tokenizer(library_models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="a"))
  library.add_special_tokens(list(special))
  library.save(str(folder / "tokenizer.json"))
  (folder / "tokenizer_config.json").write_text(json.dumps(settings or {}))
  return load_tokenizer(str(folder))


RESERVED = ("<|reserved_special_token_4|>", "<|extra_0|>", "<unused7>", "[control_8]")


def test_which_token_is_reserved(tmp_path):
  config = models.config(vocab_size=6)
  words = ["a", "b", "c", "d"]
  named = tokenizer_of(tmp_path / "named", [*words, "<m>"], ["<m>"], {"mask_token": "<m>"})
  assert find_reserved(config, named) == 4
  assert find_reserved(config, tokenizer_of(tmp_path / "rows", words)) == 4
  # Of a vocabulary without spare rows, the first token by a maker's name for such tokens.
  for i, name in enumerate(RESERVED):
    full = tokenizer_of(tmp_path / str(i), [*words, "<|im_end|>", name], ["<|im_end|>", name])
    assert find_reserved(config, full) == 5
  ordinary = tokenizer_of(tmp_path / "none", [*words, "e", "unused"], ["<|im_end|>"])
  assert find_reserved(models.config(vocab_size=7), ordinary) is None
  assert find_reserved(models.config(vocab_size=512), load_tokenizer("tok512")) is None


def test_reserved_tokens_may_be_masks_and_others_may_not(tmp_path):
  """What a config may set `model.mask_id` to, of the tokens of its tokenizer."""
  names = ["<|im_end|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>"]
  assert reserved(tokenizer_of(tmp_path / "t", ["a", "b", *names], names)) == {3, 4}
  assert reserved(load_tokenizer("tok512")) == set()


def test_rows_that_stand_for_no_token_are_not_spare(tmp_path):
  """They are never predicted, but a later padding may cut them off."""
  tokenizer = tokenizer_of(tmp_path / "t", ["a", "b", "c", "d"])
  assert find_reserved(models.config(vocab_size=6, unused_rows=2), tokenizer) is None


def test_a_model_that_has_a_mask_token_is_left_alone():
  config, params = models.config(mask_id=3), {"embedding": np.ones((13, 16))}
  assert add_mask_token(config, params) == (config, params)
