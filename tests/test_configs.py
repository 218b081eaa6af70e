"""The full-size presets say what the literature says, and their models can be built."""

import math

import jax
import pytest

from sbdjax.cli.common import load_config
from sbdjax.cli.trajectories import SECTIONS
from sbdjax.lm import make_lm
from sbdjax.nn.transformer import TransformerConfig
from sbdjax.settings import to_dataclass
from sbdjax.sigma_lm import make_sigma_lm
from sbdjax.train.settings import parse_settings, schema


def settings_of(name, variant="full"):
  return parse_settings(load_config(f"preset:{name}:{variant}", {}, schema))


def model_of(settings):
  config = to_dataclass(TransformerConfig, settings.model, "model")
  return make_lm(config) if settings.head is None else make_sigma_lm(config, settings.head)


def count(settings):
  shapes = jax.eval_shape(model_of(settings).init, jax.random.key(0))
  return sum(math.prod(x.shape) for x in jax.tree.leaves(shapes))


@pytest.mark.parametrize(("corpus", "blocks"), [("text8", 12), ("owt", 12), ("uniref50", 30)])
def test_one_of_the_blocks_is_causal_and_all_else_the_same(corpus, blocks):
  mdm, ssmd = settings_of(f"{corpus}_mdm"), settings_of(f"{corpus}_ssmd")
  assert mdm.head is None and mdm.model["num_layers"] == blocks
  assert (ssmd.model.pop("num_layers"), ssmd.head.num_layers) == (blocks - 1, 1)
  del mdm.model["num_layers"]
  for section in ("model", "data", "optim", "train", "parallel"):
    assert getattr(ssmd, section) == getattr(mdm, section)
  assert ssmd.loss.schedule == mdm.loss.schedule
  assert mdm.loss.weighting == "bound" and ssmd.loss.weighting == "inverse_count"


@pytest.mark.parametrize("corpus", ["text8", "owt"])
def test_text_is_modelled_at_the_published_size(corpus):
  """Width 768, 12 heads, 256 rows a batch, 1M steps, 2000 of warm-up, EMA 0.9999."""
  s = settings_of(f"{corpus}_mdm")
  assert (s.model["d_model"], s.model["num_heads"]) == (768, 12)
  assert (s.train.batch_size, s.train.steps, s.optim.warmup_steps) == (256, 1_000_000, 2000)
  assert (s.train.ema_decay, s.optim.b2, s.optim.weight_decay) == (0.9999, 0.999, 0.03)
  assert s.loss.schedule == {"text8": "linear", "owt": "cosine"}[corpus]
  assert s.data.seq_len == {"text8": 256, "owt": 1024}[corpus]
  # About 85M without embedding and head.
  tables = 2 * s.model["vocab_size"] * 768
  assert 84e6 < count(s) - tables < 86e6


def test_proteins_are_modelled_at_the_size_of_esm2():
  settings = settings_of("uniref50_mdm")
  assert 147e6 < count(settings) < 150e6
  assert settings.data.seq_len == 1022 + 2 and settings.data.packing == "crop"


@pytest.mark.parametrize("corpus", ["text8", "owt", "uniref50"])
def test_small_variants_and_ablations_can_be_built(corpus):
  base = settings_of(f"{corpus}_ssmd", "cpu")
  assert base.head.output_residual and count(base) < 2e7
  assert count(settings_of(f"{corpus}_mdm", "cpu")) < 2e7
  plain = settings_of(f"{corpus}_ssmd", "cpu,no_residual")
  assert not plain.head.output_residual and plain.model == base.model
  two = settings_of(f"{corpus}_ssmd", "cpu,two_causal")
  assert two.head.num_layers == 2 and two.model["num_layers"] == base.model["num_layers"] - 1


@pytest.mark.parametrize("variant", ["full", "cpu"])
@pytest.mark.parametrize("name", ["esm2_150m_ssmd", "antibody_ssmd"])
def test_the_block_on_a_frozen_model_is_all_that_is_trained(name, variant):
  settings = settings_of(name, variant)
  assert settings.init.checkpoint and settings.optim.frozen == "^trunk/" and not settings.model
  assert settings.head.num_layers == 1 and settings.train.ema_decay == 0


# Parameters as their makers count them (a tied head once); 3B: those of Llama 3.2 3B, whose shape
# it is.
PUBLISHED = {
  ("llama31_8b_sbd", "64"): 8_030_261_248,
  ("llama31_8b_sbd", "8"): 8_030_261_248,
  ("qwen3_8b_sbd", "64"): 8_190_735_360,
  ("llama_3b_sbd", "pretrain"): 3_212_749_824,
  ("llama_3b_sbd", "sft"): 3_212_749_824,
}


@pytest.mark.parametrize(("name", "variant"), PUBLISHED)
def test_full_size_models_have_the_published_number_of_parameters(name, variant):
  settings = settings_of(name, variant)
  assert count(settings) == PUBLISHED[name, variant]
  # 2M tokens a batch, which the devices and microbatches share evenly.
  assert settings.train.batch_size * settings.data.seq_len == 2**21
  assert settings.train.batch_size % (settings.parallel.fsdp * settings.train.accumulation) == 0


def test_the_coder_has_the_published_number_of_parameters():
  sections = lambda c: {**schema(c), **SECTIONS}
  config = load_config("preset:qwen25_coder_7b_jacobi", {}, sections)
  lm = make_lm(to_dataclass(TransformerConfig, config.model.to_dict(), "model"))
  shapes = jax.eval_shape(lm.init, jax.random.key(0))
  assert sum(math.prod(x.shape) for x in jax.tree.leaves(shapes)) == 7_615_616_512
