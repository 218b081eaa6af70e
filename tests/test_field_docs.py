"""Every field of every config is explained once, in a docstring, and shown from there."""

import dataclasses

import pytest

from sbdjax import field_docs, losses
from sbdjax.cli import configs, fields, trajectories
from sbdjax.data.config import DataConfig
from sbdjax.evals.sweep_points import SweepConfig
from sbdjax.train import settings


@dataclasses.dataclass(frozen=True)
class Inner:
  """Inside.

  Attributes:
    depth: how deep, at
      least: 1 of them.
  """

  depth: int = 1


@dataclasses.dataclass(frozen=True)
class Base:
  """Below.

  Attributes:
    a, b: two of a kind.

  Example:
    c: this is no field.
  """

  a: int
  b: tuple[int, ...] = (1, 2)


@dataclasses.dataclass(frozen=True)
class Derived(Base):
  """Above it.

  More of it.

  Attributes:
    c: its own.
  """

  c: Inner = Inner()
  d: str | None = None


def test_sentences_come_from_the_docstrings():
  found = {f.name: f for f in field_docs.of_class(Derived, "s")}
  assert list(found) == ["s.a", "s.b", "s.c", "s.c.depth", "s.d"]
  assert found["s.a"].text == found["s.b"].text == "two of a kind."
  assert found["s.c.depth"].text == "how deep, at least: 1 of them."
  assert (found["s.c"].text, found["s.d"].text) == ("its own.", "")
  assert found["s.a"].required and found["s.b"].default == (1, 2)
  assert (found["s.d"].type, found["s.c"].type) == ("str | None", "Inner")
  assert field_docs.summary(Derived) == "Above it."


def test_lines_mark_what_is_set():
  lines = list(field_docs.lines({"s": Derived}, {"s.b": (3,)}))
  assert "* s.b = [3]  (tuple[int, ...], default [1, 2])" in lines
  assert "  s.a: int, must be set" in lines and "  s.d: str | None, default None" in lines


def every_section():
  for name in losses.names():
    yield from settings.schema({"loss": {"name": name}}).items()
  yield from {**trajectories.SECTIONS, "sweep": SweepConfig, "data": DataConfig}.items()


@pytest.mark.parametrize(("name", "cls"), dict.fromkeys(every_section()))
def test_every_field_is_explained(name, cls):
  silent = [f.name for f in field_docs.of_class(cls, name) if len(f.text) < 4]
  assert not silent


def test_help_and_configs_show_them():
  told = fields.of_training()
  for text in (
    "  data.seq_len: int, default 256\n      L, tokens in a row.",
    "  head.num_layers: int, default 1",
    "loss.name=sbd: ",
    "  tracking.samples.every: int, default 0",
    "  optim.learning_rate: float",
  ):
    assert text in told
  shown = configs.shown("preset:text8_mdm:cpu")
  assert "* model.num_layers = 6  (int, must be set)" in shown
  assert "  train.seed: int, default 0" in shown or "* train.seed" in shown
  assert "* sweep.num_prompts" in configs.shown("preset:stories_sbd_sweep")
  assert "  collect." in configs.shown("preset:stories_jacobi")
