"""Our weights under Hugging Face's names: in numpy always, in transformers where it is installed."""

import dataclasses

import jax
import numpy as np
import pytest

from sbdjax.bench import torch_llama
from sbdjax.decode.base import Limits
from sbdjax.decode.causal.ar import AR
from sbdjax.decode.generate import Decoder
from sbdjax.errors import UsageError
from tests import models
from tests.reference import network

PROMPTS = [[1, 5, 2, 8], [3, 3, 9, 4]]


def from_state_dict(config, tensors):
  """The tree a model of half rotation would hold, written from the names' meaning."""
  heads = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}

  def stacked(name, shape=None):
    all_layers = [tensors[f"model.layers.{i}.{name}.weight"].T for i in range(config.num_layers)]
    return np.stack([x if shape is None else x.reshape(shape) for x in all_layers])

  attn = {
    f"{n}_kernel": stacked(f"self_attn.{n}_proj", (config.d_model, h, config.head_dim))
    for n, h in heads.items()
  }
  attn["o_kernel"] = stacked(
    "self_attn.o_proj", (config.num_heads, config.head_dim, config.d_model)
  )
  mlp = {f"{n}_kernel": stacked(f"mlp.{n}_proj") for n in ("gate", "up", "down")}
  return {
    "embedding": tensors["model.embed_tokens.weight"],
    "head": tensors["lm_head.weight"],
    "final_norm": {"scale": tensors["model.norm.weight"]},
    "layers": {
      "attn": attn,
      "mlp": mlp,
      "attn_norm": {"scale": stacked("input_layernorm")},
      "mlp_norm": {"scale": stacked("post_attention_layernorm")},
    },
  }


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_state_dict_is_the_same_network_in_half_rotation(interleaved, tied):
  lm = models.lm_of(rope_interleaved=interleaved, tie_embeddings=tied, mask_id=12)
  params = models.random_params(lm)
  tokens, positions, visible = np.array([1, 5, 2, 8, 3]), np.arange(5), np.tri(5, dtype=bool)
  expected = network.forward(lm.config, params, tokens, positions, visible)
  theirs = dataclasses.replace(
    lm.config, rope_interleaved=False, tie_embeddings=False, vocab_size=12, mask_id=None
  )
  tensors = torch_llama.state_dict(lm.config, params)
  found = network.forward(theirs, from_state_dict(theirs, tensors), tokens, positions, visible)
  np.testing.assert_allclose(found, expected[:, :12], rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not torch_llama.is_available(), reason="torch and transformers not installed")
@pytest.mark.parametrize("interleaved", [True, False])
def test_transformers_generates_our_greedy_tokens(interleaved):
  lm = models.lm_of(rope_interleaved=interleaved, mask_id=12)
  params = models.random_params(lm)
  row, theirs = torch_llama.time_generate(lm.config, params, PROMPTS, 8, 2, threads=1)
  results = Decoder(lm, Limits(8)).generate(AR(), params, PROMPTS, jax.random.key(0))
  ours = [r.tokens for r in results]
  assert ours == theirs
  assert row.tokens == 16 and row.low <= row.tokens_per_second <= row.high


@pytest.mark.skipif(not torch_llama.is_available(), reason="torch and transformers not installed")
@pytest.mark.parametrize(
  "change",
  [{"qk_norm": True}, {"mlp_bias": True}, {"o_bias": True}, {"rope_frequencies": (0.5, 0.1)}],
)
def test_only_plain_llama_is_compared(change):
  lm = models.lm_of(**change)
  with pytest.raises(UsageError, match="plain Llama"):
    torch_llama.make_llama(lm.config, models.random_params(lm))


@pytest.mark.skipif(not torch_llama.is_available(), reason="torch and transformers not installed")
def test_a_text_ends_with_one_of_its_last_tokens():
  lm = models.lm_of()
  llama = torch_llama.make_llama(lm.config, models.random_params(lm))
  (whole,) = torch_llama.generate(llama, PROMPTS[:1], 12).tokens
  first = whole.index(whole[3])  # it may come before
  (ended,) = torch_llama.generate(llama, PROMPTS[:1], 12, eos_ids=(whole[3],)).tokens
  assert len(whole) == 12 and ended == whole[: first + 1]


@pytest.mark.skipif(not torch_llama.is_available(), reason="torch and transformers not installed")
def test_the_tokens_of_all_forwards_are_counted():
  lm = models.lm_of()
  llama = torch_llama.make_llama(lm.config, models.random_params(lm))
  plain = torch_llama.generate(llama, [[1, 2, 3, 1, 2]], 12)
  assert (plain.forwards, plain.query_tokens) == (12, 5 + 11)  # the last token is run by none
  drafted = torch_llama.generate(llama, [[1, 2, 3, 1, 2]], 12, prompt_lookup_num_tokens=4)
  assert drafted.tokens == plain.tokens
  assert drafted.query_tokens > plain.query_tokens
