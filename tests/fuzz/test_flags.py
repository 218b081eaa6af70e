"""Whatever settings say: they are taken, or refused by one error that names one."""

import dataclasses
import json
import typing

import pytest

pytest.importorskip("hypothesis", reason="needs the extra `dev`: hypothesis")

from hypothesis import given
from hypothesis import strategies as st

from sbdjax.cli import flags
from sbdjax.decode import bounds, flat_names, registry
from sbdjax.errors import SbdjaxError, UsageError
from sbdjax.nn.config import TransformerConfig, from_record
from sbdjax.settings import check_value, describe, parse_value
from sbdjax.train.settings import parse_settings
from tests.fuzz.strategies import JSON, NUMBERS, TEXTS, changed, fuzz

WORDS = ["nan", "inf", "-inf", "1e400", "9" * 5000, "None", "true", "()", "(1,", "[1]", "{}", "'a'"]
VALUES = st.one_of(
  NUMBERS.map(str), TEXTS, st.sampled_from(WORDS + ["(" * 500, "-1", "0", "1", "0.5", "auto"])
)
METHODS = sorted(registry.REGISTRY[registry.METHOD])
FIELDS = sorted(
  {name for m in METHODS for name in flat_names.field_types({registry.METHOD: m})}
  - {registry.METHOD}
)


@fuzz
@given(st.sampled_from(METHODS), st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3))
def test_decoder_flags(method, texts):
  try:
    decoding = flags.decoding_of({registry.METHOD: method, **texts})
    bounds.check_sizes(decoding.method, 512)
  except SbdjaxError as e:
    assert "\n" not in str(e) and len(str(e)) < 20_000
    return
  record = decoding.flat()
  assert json.loads(json.dumps(record, allow_nan=False)) is not None


@fuzz
@given(st.sampled_from([int, float, bool, str, int | None, tuple[float, ...]]), VALUES)
def test_values_of_flags(hint, text):
  try:
    value = parse_value(text, hint, "x")
  except UsageError:
    return
  assert check_value(value, hint, "x") == value or describe(hint)


CONFIG = dict(
  model=dict(
    vocab_size=28, mask_id=27, num_layers=1, d_model=16, num_heads=2, num_kv_heads=1, d_ff=24,
    max_seq_len=32,
  ),
  data=dict(source="text", path="x", tokenizer="text8", seq_len=16, split_sizes=[1, 2, 3]),
  loss=dict(name="sbd", block_size_max=4),
  optim=dict(learning_rate=0.01, warmup_steps=2),
  train=dict(steps=6, batch_size=4, eval_every=3),
)  # fmt: skip


@fuzz
@given(changed(CONFIG))
def test_training_configs(config):
  if not isinstance(config, dict):
    return
  try:
    settings = parse_settings(config)
    to = from_record(settings.model)
  except (SbdjaxError, TypeError) as e:
    assert not isinstance(e, TypeError) or "recorded as a mapping" in str(e), e
    return
  assert isinstance(to, TransformerConfig)


@fuzz
@given(changed(CONFIG["model"]), JSON)
def test_recorded_models(fields, other):
  for value in (fields, other):
    try:
      config = from_record(value)
    except UsageError:
      continue
    except TypeError as e:
      assert "recorded as a mapping" in str(e)
      continue
    hints = typing.get_type_hints(TransformerConfig)
    for field in dataclasses.fields(config):
      check_value(getattr(config, field.name), hints[field.name], field.name)
