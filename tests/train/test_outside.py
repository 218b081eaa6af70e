"""A loss and a data source from a package of one's own: by flags, in records, and from Python."""

import dataclasses
import importlib
import json
import sys

import numpy as np
import pytest

from sbdjax import __main__ as entry
from sbdjax import losses
from sbdjax.data import sources
from sbdjax.data.config import DataConfig
from sbdjax.errors import UsageError
from sbdjax.losses import registry
from sbdjax.settings import to_dataclass
from sbdjax.train.build import train
from sbdjax.train.settings import parse_settings

LOSSES = '''
import dataclasses

import jax.numpy as jnp

from sbdjax import masks
from sbdjax.errors import UsageError
from sbdjax.losses import Loss, NTPLoss


def make(scale: float = 1.0, label: str = "own"):
  """The next-token loss, scaled."""
  if not scale > 0:
    raise UsageError(f"loss.scale={scale} must be positive")

  def loss_fn(lm, params, batch, key):
    loss, weight, metrics = NTPLoss()(lm, params, batch, key)
    return scale * loss, weight, metrics | {f"{label}_loss": (loss, weight)}

  return loss_fn


@dataclasses.dataclass(frozen=True)
class Copying(Loss):
  """Every position predicts its own token; evaluations count each by half."""

  factor: float = 1.0

  def __call__(self, lm, params, batch, key):
    hidden, _ = lm.apply(
      params, batch["tokens"], positions_BxT=batch["positions"], mask=masks.Full()
    )
    log_p = lm.logits(params, hidden)
    log_p = log_p - jnp.log(jnp.sum(jnp.exp(log_p), axis=-1, keepdims=True))
    picked = jnp.take_along_axis(log_p, batch["tokens"][..., None], axis=-1)[..., 0]
    return -self.factor * jnp.sum(picked), jnp.float32(picked.size), {}

  def evaluated(self):
    return dataclasses.replace(self, factor=0.5)

  def generation(self):
    return dict(attention="block_causal", block_size=3)


def untyped(scale=1.0):
  return None


def empty(scale: float = 1.0):
  return None


class NoLoss:
  pass
'''
DATA = '''
import dataclasses

from sbdjax.data.corpus import Document
from sbdjax.data.sources import Source


@dataclasses.dataclass(frozen=True)
class Repeated(Source):
  """`count` texts of one letter each."""

  count: int = 8
  letter: str = "a"

  def load(self, split, tokenizer):
    texts = [Document(self.letter * 40)] * (self.count if split == "train" else 1)
    return self.tokenize(texts, tokenizer, origin=f"{self.count} times {self.letter}, {split}")
'''
CONFIG = """
def get_config():
  return dict(
    model=dict(
      vocab_size=28, mask_id=27, num_layers=1, d_model=8, num_heads=2, num_kv_heads=1, d_ff=8,
      max_seq_len=24,
    ),
    data=dict(source="stories", tokenizer="text8", add_bos=False, seq_len=16),
    loss=dict(name="ntp"),
    optim=dict(learning_rate=0.01, warmup_steps=1),
    train=dict(steps=2, batch_size=2, log_every=1, eval_every=2, eval_batches=1),
  )
"""


@pytest.fixture
def my_lab(tmp_path, monkeypatch):
  """A folder on the path with the package above; what it registers is forgotten."""
  package = tmp_path / "elsewhere" / "my_lab"
  package.mkdir(parents=True)
  for name, text in (("__init__", ""), ("losses", LOSSES), ("data", DATA)):
    (package / f"{name}.py").write_text(text)
  (package / "broken.py").write_text("import no_such_module\n")
  monkeypatch.syspath_prepend(package.parent)
  monkeypatch.setattr(registry, "_LOSSES", dict(registry._LOSSES))
  monkeypatch.setattr(sources, "_OWN", {})
  yield package.parent
  for name in [n for n in sys.modules if n.split(".")[0] == "my_lab"]:
    del sys.modules[name]


def config_of(**sections):
  namespace = {}
  exec(CONFIG, namespace)
  config = namespace["get_config"]()
  return {name: config.get(name, {}) | sections.get(name, {}) for name in config}


def metrics_of(workdir):
  return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.long
def test_both_by_flags_are_trained_recorded_resumed_evaluated_and_decoded(my_lab, tmp_path, capsys):
  (tmp_path / "config.py").write_text(CONFIG)
  workdir = tmp_path / "run"
  flags = [f"--config={tmp_path / 'config.py'}", f"--workdir={workdir}"]
  flags += ["--config.loss.scale=3", "--config.loss.name=my_lab.losses:make"]
  flags += ["--config.data.letter=b", "--config.data.source=my_lab.data:Repeated"]
  assert entry.main(["train", *flags]) == 0
  record = json.loads((workdir / "config.json").read_text())
  assert record["loss"] == {"name": "my_lab.losses:make", "scale": 3.0, "label": "own"}
  data = record["data"]
  assert (data["source"], data["count"], data["letter"]) == ("my_lab.data:Repeated", 8, "b")
  assert record["resolved"]["data"] == "8 times b, train"
  first, second = metrics_of(workdir)
  assert first["train/loss"] == pytest.approx(3 * first["train/own_loss"])
  assert second["eval/loss"] == pytest.approx(3 * second["eval/own_loss"])
  assert entry.main(["train", *flags, "--config.train.steps=3"]) == 0
  assert [line["step"] for line in metrics_of(workdir)] == [1, 2, 3]
  capsys.readouterr()
  own = ["--data.source=my_lab.data:Repeated", "--data.count=2", "--data.seq_len=16"]
  assert entry.main(["evaluate", f"--checkpoint={workdir}", *own, "--json"]) == 0
  assert json.loads(capsys.readouterr().out)["corpus"] == "2 times a, validation"
  decode = ["--prompt=abc", "--decoder.name=ar", "--decoder.max_tokens=2"]
  assert entry.main(["generate", f"--checkpoint={workdir}", *decode]) == 0


@pytest.mark.long
def test_both_registered_from_python(my_lab, tmp_path):
  """A class says what evaluations measure and how its model is decoded."""
  own = importlib.import_module("my_lab.losses")
  data = importlib.import_module("my_lab.data")
  assert losses.register("copying", own.Copying) is own.Copying
  assert sources.register("repeated", data.Repeated) is data.Repeated
  config = config_of(
    loss=dict(name="copying", factor=2.0),
    data=dict(source="repeated", count=3),
    optim=dict(learning_rate=1e-9),
  )
  state = train(config, tmp_path / "run")
  assert int(state.step) == 2
  record = json.loads((tmp_path / "run" / "config.json").read_text())
  assert record["loss"] == {"name": "copying", "factor": 2.0}
  assert record["resolved"]["generation"] == dict(attention="block_causal", block_size=3)
  last = metrics_of(tmp_path / "run")[-1]
  assert last["train/loss"] / last["eval/loss"] == pytest.approx(4, rel=1e-4)
  assert np.log(28) * 0.3 < last["eval/loss"] < np.log(28)


def test_a_function_is_a_loss_whose_fields_are_its_arguments(my_lab):
  make = importlib.import_module("my_lab.losses").make
  cls = losses.register("scaled", make)
  assert losses.get("scaled") is cls and losses.get("my_lab.losses:make") is cls
  assert cls(scale=2.0) == cls(2.0) and cls() != cls(2.0) and "scaled" in losses.names()
  assert [f.name for f in dataclasses.fields(cls)] == ["scale", "label"]
  assert cls.__doc__ == "The next-token loss, scaled." and not cls.has_head
  assert cls().evaluated() == cls() and cls().generation() == {}
  with pytest.raises(UsageError, match="loss.scale=0.0 must be positive"):
    parse_settings(config_of(loss=dict(name="scaled", scale=0)))


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("sdb", r"loss.name='sdb' \(did you mean 'sbd'\?\): choose one of ntp, sbd, "),
    ("no_such_lab.losses:make", "cannot import no_such_lab.*PYTHONPATH"),
    ("my_lab.broken:make", "cannot import my_lab.broken .*no_such_module"),
    ("my_lab.losses:mke", r"my_lab.losses has no mke \(did you mean 'make'\?\)"),
    ("my_lab.losses:", "write module:Name"),
    ("my_lab.losses:NoLoss", "is no loss: give a dataclass derived from sbdjax.losses.Loss"),
    ("my_lab.losses:LOSS", "has no LOSS"),
    ("my_lab.losses:masks", "is no loss"),
    ("my_lab.losses:untyped", "its argument scale is a setting: give it a type and a default"),
    ("my_lab.losses:empty", "returned None, which is no loss function"),
    ("", "choose one of ntp"),
  ],
)
def test_a_loss_that_cannot_be_is_named(my_lab, name, message):
  with pytest.raises(UsageError, match=message) as error:
    parse_settings(config_of(loss=dict(name=name)))
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("storys", r"data.source='storys' \(did you mean 'stories'\?\)"),
    ("no_such_lab:Data", "cannot import no_such_lab"),
    ("my_lab.data:Repeted", r"has no Repeted \(did you mean 'Repeated'\?\)"),
    ("my_lab.data:Source", "is no source: give a dataclass derived from"),
    ("my_lab.data:Document", "is no source"),
  ],
)
def test_a_source_that_cannot_be_is_named(my_lab, name, message):
  with pytest.raises(UsageError, match=message):
    parse_settings(config_of(data=dict(source=name)))


def test_fields_of_a_source_belong_to_it_alone(my_lab):
  with pytest.raises(UsageError, match=r"unknown field data.cuont \(did you mean 'count'\?\)"):
    to_dataclass(DataConfig, dict(source="my_lab.data:Repeated", cuont=3), "data")
  with pytest.raises(UsageError, match="unknown field data.count"):
    to_dataclass(DataConfig, dict(source="stories", count=3), "data")
  built = importlib.import_module("my_lab.data").Repeated(count=3, seq_len=7)
  assert built.source == "my_lab.data:Repeated" and (built.count, built.seq_len) == (3, 7)
  with pytest.raises(UsageError, match="at least 2 tokens"):
    dataclasses.replace(built, seq_len=1)


def test_names_are_taken_once(my_lab):
  own = importlib.import_module("my_lab.losses")
  data = importlib.import_module("my_lab.data")
  losses.register("copying", own.Copying)
  losses.register("copying", own.Copying)  # a cell of a notebook, run twice
  for name, loss in (
    ("copying", own.make),
    ("ntp", own.Copying),
    ("a:b", own.make),
    ("", own.make),
  ):
    with pytest.raises(UsageError, match="taken by|without ':'"):
      losses.register(name, loss)
  sources.register("repeated", data.Repeated)
  for name in ("stories", "a:b"):
    with pytest.raises(UsageError, match="taken by|without ':'"):
      sources.register(name, data.Repeated)
  with pytest.raises(UsageError, match="is no source"):
    sources.register("other", own.Copying)
