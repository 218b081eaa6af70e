"""From names and flags to samplers."""

import dataclasses

import jax
import numpy as np
import pytest
from sbdjax.cli.decoders import METHODS, RULES, DecoderConfig

from sbdjax.cli import decoders
from sbdjax.decode import base, sampling, sbd, select
from sbdjax.decode.base import Limits
from sbdjax.errors import UsageError
from tests import models
from tests.decode import fill_reference

LM = models.lm_of(mask_id=12)
PARAMS = models.random_params(LM)
PROMPT = np.array([[1, 2, 3], [4, 5, 0]], np.int32), np.array([3, 2], np.int32)

# name -> (flags, the rule they mean)
EXPECTED = {
  "eb_entropy": ({"gamma": "1.5"}, select.eb_entropy(1.5)),
  "eb_confidence": ({"gamma": "1.5"}, select.eb_confidence(1.5)),
  "eb_margin": ({"gamma": "1.5"}, select.eb_margin(1.5)),
  "factor": ({"f": "2.5"}, select.factor(2.5)),
  "confidence_threshold": ({"tau": "0.3"}, select.confidence_threshold(0.3)),
  "entropy_threshold": ({"gamma": "1.5"}, select.entropy_threshold(1.5)),
  "top_k": ({"tokens_per_step": "3", "score": "margin"}, select.top_k(3, select.margin)),
}


def test_every_rule_is_tested():
  assert EXPECTED.keys() == RULES.keys()


@pytest.mark.parametrize("rule", EXPECTED)
def test_flags_reach_the_rule(rule):
  flags, expected = EXPECTED[rule]
  config = decoders.from_flags({"name": "sbd", "rule": rule} | flags)
  rng = np.random.default_rng(0)
  logits = jax.numpy.asarray(3 * rng.normal(size=(64, 12, 13)), jax.numpy.float32)
  masked = jax.numpy.asarray(rng.random((64, 12)) < 0.8)
  reveal = lambda config: np.asarray(
    jax.jit(lambda n: RULES[rule].build(config, n)(logits, masked))(decoders.numbers_of(config))
  )
  np.testing.assert_array_equal(reveal(config), expected(logits, masked))
  assert (reveal(config) != reveal(DecoderConfig("sbd"))).any()  # the flags did something


def test_settings_reach_the_sampler():
  """All but the rule, against the sampler made by hand."""
  flags = dict(name="sbd", rule="eb_confidence", gamma="4", block_size="6", max_tokens="11")
  config = decoders.from_flags(flags)
  choose, rule = sampling.greedy(), select.eb_confidence(4.0)
  direct = sbd.make_sampler(LM, Limits(11, (3,)), choose, rule, 6)

  def run(sampler):
    decode = jax.jit(lambda params, *args: base.decode(sampler, params, *args).out)
    return jax.device_get(decode(PARAMS, *PROMPT, jax.random.key(0)))

  found, expected = run(decoders.make_sampler(LM, config, (3,))), run(direct)
  jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize(
  ("texts", "message"),
  [
    ({"gama": "1"}, "unknown field decoder.gama .did you mean 'gamma'"),
    ({"name": "sdb"}, "decoder.name='sdb' .did you mean 'sbd'"),
    ({"name": "sbd", "rule": "eb_entrpy"}, "decoder.rule=.*did you mean 'eb_entropy'"),
    ({"name": "sbd", "rule": "top_k", "score": "margn"}, "decoder.score=.*did you mean 'margin'"),
    ({"name": "sbd", "gamma": "-0.1"}, "decoder.gamma=-0.1 must not be negative"),
    ({"name": "sbd", "gamma": "nan"}, "decoder.gamma=nan"),
    ({"name": "sbd", "gamma": "much"}, "decoder.gamma=much: expected float"),
    ({"name": "sbd", "block_size": "0"}, "decoder.block_size=0 must be at least 1"),
    ({"name": "sbd", "rule": "factor", "f": "-1"}, "decoder.f=-1.0 must not be negative"),
    ({"name": "sbd", "rule": "top_k", "tokens_per_step": "0"}, "tokens_per_step=0 must be at leas"),
    ({"max_tokens": "0"}, "decoder.max_tokens=0 must be at least 1"),
    ({"max_tokens": "1.5"}, "decoder.max_tokens=1.5: expected int"),
    ({"temperature": "-1"}, "temperature=-1.0 must be positive"),
    ({"temperature": "1", "top_p": "0"}, "top_p=0.0 in"),
  ],
)
def test_bad_flags(texts, message):
  with pytest.raises(UsageError, match=message) as caught:
    decoders.from_flags(texts)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
  "texts, message",
  [
    ({"gamma": "0.1"}, "decoder.gamma has no effect here: with decoder.name=ar"),
    ({"name": "sbd", "rule": "factor", "gamma": "0.1"}, "decoder.gamma has no effect"),
    ({"name": "sbd", "top_k": "5"}, "decoder.top_k has no effect"),
  ],
)
def test_settings_that_nothing_reads_are_noted(texts, message, capsys):
  decoders.from_flags(texts)
  assert message in capsys.readouterr().err
  decoders.from_flags({"name": "sbd", "gamma": "0.1"})
  assert not capsys.readouterr().err


def test_a_model_without_mask_token_cannot_do_sbd():
  with pytest.raises(UsageError, match="no mask token"):
    decoders.make_sampler(models.lm_of(), DecoderConfig("sbd"), ())


def test_records_hold_what_mattered():
  assert decoders.settings_of(DecoderConfig("ar", 7, gamma=3.0)) == {
    "name": "ar", "max_tokens": 7, "temperature": 0.0,
  }  # fmt: skip
  drawn = DecoderConfig("sbd", temperature=1.0, rule="factor", f=0.5)
  assert set(decoders.settings_of(drawn)) == {
    "name", "max_tokens", "temperature", "top_k", "top_p", "block_size", "rule", "f",
  }  # fmt: skip


def test_static_part_forgets_numbers_only():
  config = DecoderConfig("sbd", gamma=0.7, tau=0.1, f=2.0, tokens_per_step=3, block_size=4)
  assert decoders.static_part(config) == DecoderConfig("sbd", block_size=4)
  changed = {f.name for f in dataclasses.fields(config)} - set(decoders.TRACED)
  assert {"name", "block_size", "temperature", "max_tokens", "rule"} <= changed


# How many tokens a forward works on, where it is not the block.
CANVAS_SIZES = {"ar": 0, "sbd_verified": 5, "mdm": 8, "ssmd": 8, "jacobi_multiblock": 8}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_where_it_works(name):
  config = DecoderConfig(name, max_tokens=8, block_size=4)
  if "attention" in METHODS[name].reads(config):
    config = dataclasses.replace(config, attention="full")
  lm = LM if LM.__class__ in METHODS[name].models else fill_reference.self_speculative(LM)
  sampler = decoders.make_sampler(lm, config, ())
  state = sampler.init(PARAMS, *PROMPT, jax.random.key(0))
  canvas = METHODS[name].canvas(state, config)
  np.testing.assert_array_equal(canvas.start_B, PROMPT[1])
  assert canvas.size == CANVAS_SIZES.get(name, 4)
  if METHODS[name].tried is not None:
    np.testing.assert_array_equal(METHODS[name].tried(state), np.full((2, canvas.size), -1))


def test_verified_decoding_refuses_resampling_without_noise():
  config = DecoderConfig("sbd_verified", block_size=4, verify="resample")
  with pytest.raises(UsageError, match="decoder.temperature above 0"):
    decoders.make_sampler(LM, config, ())
  drawn = dataclasses.replace(config, temperature=1.0)
  assert decoders.make_sampler(LM, drawn, ()) is not None
