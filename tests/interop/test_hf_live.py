"""Random models of `transformers`, opened, compared, decoded and handed back.

Runs where the extra `parity` is installed.
"""

import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra `parity`: torch is not installed")
transformers = pytest.importorskip(
  "transformers", reason="needs the extra `parity`: transformers is not installed"
)

from sbdjax import masks  # noqa: E402
from sbdjax.decode.base import Limits  # noqa: E402
from sbdjax.decode.causal.ar import AR  # noqa: E402
from sbdjax.decode.generate import Decoder  # noqa: E402
from sbdjax.interop import load_pretrained, save_pretrained  # noqa: E402
from tests import models  # noqa: E402
from tests.interop import hf_models  # noqa: E402
from tests.interop.hf_models import without  # noqa: E402

TOLERANCE = 1e-4
LENGTH = 24
SEEDS = range(3)
transformers.logging.set_verbosity_error()


def heads(rng):
  """(query heads, kv heads, head_dim): all GQA ratios, sizes that are no powers of two."""
  kv, group, dim = rng.choice([1, 2, 3]), rng.choice([1, 2, 3]), 2 * rng.choice([2, 3, 5, 8])
  return kv * group, kv, dim


def common(rng):
  h, kv, dim = heads(rng)
  return dict(
    vocab_size=rng.randrange(30, 120),
    hidden_size=h * dim,
    intermediate_size=rng.randrange(10, 60),
    num_hidden_layers=rng.choice([1, 2, 3]),
    num_attention_heads=h,
    num_key_value_heads=kv,
    max_position_embeddings=64,
    rms_norm_eps=rng.choice([1e-6, 1e-5, 1e-3]),
    tie_word_embeddings=rng.random() < 0.5,
    rope_theta=rng.choice([1e4, 1e6]),
  )


def llama(rng):
  scaling = dict(
    rope_type="llama3",
    factor=rng.choice([2.0, 8.0, 32.0]),
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=rng.choice([8, 32]),
  )
  return transformers.LlamaConfig(
    **common(rng),
    rope_scaling=rng.choice([None, scaling]),
    attention_bias=rng.random() < 0.5,
    mlp_bias=rng.random() < 0.5,
  )


def mistral(rng):
  window = rng.choice([None, LENGTH])
  return transformers.MistralConfig(**common(rng), sliding_window=window)


def qwen2(rng):
  return transformers.Qwen2Config(**common(rng))


def qwen3(rng):
  fields = common(rng) | dict(head_dim=2 * rng.randrange(2, 9))
  return transformers.Qwen3Config(**fields, attention_bias=rng.random() < 0.5)


def gpt2(rng):
  h, dim = rng.choice([1, 3, 4]), rng.choice([5, 8])
  return transformers.GPT2Config(
    vocab_size=rng.randrange(30, 120),
    n_embd=h * dim,
    n_head=h,
    n_layer=rng.choice([1, 2, 3]),
    n_positions=64,
    n_inner=rng.choice([None, 50]),
    activation_function=rng.choice(["gelu_new", "gelu"]),
    layer_norm_epsilon=rng.choice([1e-5, 1e-3]),
    tie_word_embeddings=rng.random() < 0.5,
    bos_token_id=0,
    eos_token_id=0,
  )


def esm(rng):
  h, dim = rng.choice([1, 3, 4]), 2 * rng.choice([2, 3, 5])
  return transformers.EsmConfig(
    vocab_size=33,
    hidden_size=h * dim,
    num_hidden_layers=rng.choice([1, 2, 3]),
    num_attention_heads=h,
    intermediate_size=rng.randrange(10, 60),
    position_embedding_type="rotary",
    token_dropout=rng.random() < 0.7,
    layer_norm_eps=rng.choice([1e-5, 1e-3]),
    mask_token_id=32,
    pad_token_id=1,
    attention_probs_dropout_prob=0.0,
    hidden_dropout_prob=0.0,
  )


def bert(rng):
  h, dim = rng.choice([1, 3, 4]), rng.choice([5, 8])
  return transformers.BertConfig(
    vocab_size=33,
    hidden_size=h * dim,
    num_hidden_layers=rng.choice([1, 2, 3]),
    num_attention_heads=h,
    intermediate_size=rng.randrange(10, 60),
    max_position_embeddings=32,
    type_vocab_size=rng.choice([1, 2, 4]),
    layer_norm_eps=rng.choice([1e-12, 1e-5, 1e-3]),
    tie_word_embeddings=rng.random() < 0.5,
    mask_token_id=4,
  )


CAUSAL = {"llama": llama, "mistral": mistral, "qwen2": qwen2, "qwen3": qwen3, "gpt2": gpt2}


def random_model(config, cls, seed):
  """A model of transformers in which nothing is at its neutral value."""
  torch.manual_seed(seed)
  model = cls(config).eval().to(torch.float32)
  with torch.no_grad():
    for name, x in model.named_parameters():
      scale = 0.3 if "embed" in name or "wte" in name else x.shape[-1] ** -0.5
      x.normal_(0.0, scale if x.ndim > 1 else 0.1)
      if "norm" in name.lower() and name.endswith("weight") or ".ln_" in name:
        x.add_(1.0)
  return model


def logits_of(model, tokens, mask):
  @jax.jit
  def run(params, tokens, mask):
    hidden, _ = model.lm.apply(
      params, tokens, positions_BxT=models.positions(*tokens.shape), mask=mask
    )
    return model.lm.logits(params, hidden)

  return np.asarray(run(model.params, tokens, mask))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
  """(family, seed) -> (model of transformers, ours), each made once."""

  @functools.cache
  def make(family, seed):
    config = CAUSAL[family](random.Random(f"{family}{seed}"))
    theirs = random_model(config, transformers.AutoModelForCausalLM.from_config, seed)
    folder = tmp_path_factory.mktemp(f"{family}{seed}")
    theirs.save_pretrained(folder, max_shard_size="20KB")
    return theirs, load_pretrained(folder)

  return make


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", CAUSAL)
def test_logits(pair, family, seed, record_property):
  theirs, ours = pair(family, seed)
  tokens = models.tokens(2, LENGTH, ours.lm.config.vocab_size, seed)
  with torch.no_grad():
    expected = theirs(torch.tensor(tokens, dtype=torch.long)).logits.numpy()
  worst = float(np.abs(logits_of(ours, tokens, masks.Causal()) - expected).max())
  record_property("largest difference", worst)
  assert worst <= TOLERANCE
  assert expected.std() > 0.3, "logits so alike that anything would pass"


@pytest.mark.parametrize("family", CAUSAL)
def test_cached_decoding_is_greedy_generate_token_for_token(pair, family):
  theirs, ours = pair(family, 1)
  prompts = models.tokens(3, 7, ours.lm.config.vocab_size, seed=5).tolist()
  # Prompts of one length: transformers pads on the left, which is another computation.
  decoder = Decoder(ours.lm, Limits(16))
  results = list(decoder.generate(AR(), ours.params, prompts, jax.random.key(0)))
  inputs = torch.tensor(prompts)
  with torch.no_grad():
    expected = theirs.generate(
      inputs,
      attention_mask=torch.ones_like(inputs),
      max_new_tokens=16,
      min_new_tokens=16,
      do_sample=False,
      use_cache=True,
      eos_token_id=None,
      pad_token_id=0,
    )[:, 7:].tolist()
  assert [r.tokens for r in results] == expected
  assert len({t for row in expected for t in row}) > 4, "a text of one token proves little"


@pytest.mark.parametrize("seed", SEEDS)
def test_esm_with_masks_and_padding(tmp_path, seed, record_property):
  config = esm(random.Random(f"esm{seed}"))
  theirs = random_model(config, transformers.EsmForMaskedLM, seed)
  theirs.save_pretrained(tmp_path / "m")
  ours = load_pretrained(tmp_path / "m")
  rng = np.random.default_rng(seed)
  tokens = rng.integers(4, 24, (5, LENGTH)).astype(np.int32)
  tokens[:, 0] = 0
  for row, (share, length) in enumerate([(0, 24), (0.3, 24), (1, 24), (0.5, 11), (1, 17)]):
    tokens[row, 1:][rng.random(LENGTH - 1) < share] = 32
    tokens[row, length - 1] = 2
    tokens[row, length:] = 1
  padding = (tokens != 1).astype(np.int64)
  with torch.no_grad():
    expected = theirs(
      torch.tensor(tokens, dtype=torch.long), attention_mask=torch.tensor(padding)
    ).logits.numpy()
  found = logits_of(ours, tokens, masks.Full(jnp.asarray(padding.sum(axis=1))))
  mask_id = ours.lm.config.mask_id
  error = np.abs(without(mask_id, found) - without(mask_id, expected))
  worst = float(error[padding == 1].max())
  record_property("largest difference", worst)
  assert worst <= TOLERANCE


@pytest.mark.parametrize("seed", SEEDS)
def test_bert_with_padding(tmp_path, seed, record_property):
  """As a text of one segment, whose type is part of every position."""
  config = bert(random.Random(f"bert{seed}"))
  theirs = random_model(config, transformers.BertForMaskedLM, seed)
  assert theirs.bert.embeddings.token_type_embeddings.weight[0].abs().mean() > 0.1
  theirs.save_pretrained(tmp_path / "m")
  ours = load_pretrained(tmp_path / "m")
  rng = np.random.default_rng(seed)
  tokens = rng.integers(4, 33, (4, LENGTH)).astype(np.int32)
  lengths = np.array([24, 17, 11, 1])
  padding = (np.arange(LENGTH) < lengths[:, None]).astype(np.int64)
  with torch.no_grad():
    expected = theirs(
      torch.tensor(tokens, dtype=torch.long), attention_mask=torch.tensor(padding)
    ).logits.numpy()
  found = logits_of(ours, tokens, masks.Full(jnp.asarray(lengths)))
  mask_id = ours.lm.config.mask_id
  error = np.abs(without(mask_id, found) - without(mask_id, expected))
  worst = float(error[padding == 1].max())
  record_property("largest difference", worst)
  assert worst <= TOLERANCE
  assert expected.std() > 0.3, "logits so alike that anything would pass"


def test_esm_with_rotations_rounded_in_training(tmp_path):
  """transformers takes ESM's rotary frequencies from the file; so must we, there and back."""
  frequencies = (1.0, 0.0371)
  model = hf_models.build("esm", rope_frequencies=frequencies)
  save_pretrained(tmp_path / "m", model)
  theirs = transformers.EsmForMaskedLM.from_pretrained(tmp_path / "m").eval()
  tokens = models.tokens(2, LENGTH, vocab_size=7) + 2
  with torch.no_grad():
    expected = theirs(torch.tensor(tokens, dtype=torch.long)).logits.numpy()
  expected, found, usual = (
    without(model.lm.config.mask_id, logits)
    for logits in (
      expected,
      logits_of(model, tokens, masks.Full()),
      logits_of(hf_models.build("esm"), tokens, masks.Full()),
    )
  )
  np.testing.assert_allclose(found, expected, atol=TOLERANCE)
  assert np.abs(usual - expected).max() > 0.01


WRITTEN = (
  "llama", "llama_biases", "qwen2", "qwen3", "sbd", "gpt2", "esm", "esm_plain", "bert", "bert_plain"
)  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_transformers_opens_what_is_written(tmp_path, name):
  model = hf_models.build(name)
  save_pretrained(tmp_path / "m", model, max_shard_bytes=4000)
  masked = name.startswith(("esm", "bert"))
  auto = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
  theirs, info = auto.from_pretrained(tmp_path / "m", output_loading_info=True)
  assert type(theirs).__name__ == hf_models.FAMILIES[name][2]
  # The contact head of ESM is no part of the language model.
  assert not [k for k in info["missing_keys"] if "contact_head" not in k]
  assert not info["unexpected_keys"] and not info["mismatched_keys"]
  tokens = models.tokens(2, 9, vocab_size=7) + 2  # without ESM's padding token
  with torch.no_grad():
    expected = theirs.eval()(torch.tensor(tokens, dtype=torch.long)).logits.numpy()
  rule = masks.Full() if masked else masks.Causal()
  used, mask_id = model.lm.config.vocab_size - model.lm.config.unused_rows, model.lm.config.mask_id
  found, expected = (
    without(mask_id, logits[..., :used]) for logits in (logits_of(model, tokens, rule), expected)
  )
  np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def test_transformers_reads_the_recommended_decoding(tmp_path):
  save_pretrained(tmp_path / "m", hf_models.build("llama_biases"))
  found = transformers.GenerationConfig.from_pretrained(tmp_path / "m")
  assert (found.do_sample, found.temperature, found.top_k, found.top_p) == (True, 0.6, 20, 0.95)
  assert (found.max_new_tokens, found.eos_token_id) == (32, [2, 3])
