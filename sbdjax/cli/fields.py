"""Every field of a config with its type, default and sentence, for `train --help` and `configs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from sbdjax import field_docs, losses
from sbdjax.cli import trajectories
from sbdjax.data.config import DataConfig
from sbdjax.evals.sweep_points import SweepConfig
from sbdjax.settings import class_for
from sbdjax.train import settings

_SWEEP = {"sweep": SweepConfig, "data": DataConfig}


def of_training() -> str:
  """The sections of a training config, with those of every registered loss."""
  by_loss = {name: settings.schema({"loss": {"name": name}}) for name in losses.names()}
  shared: dict[str, type] = {}
  for sections in by_loss.values():
    shared |= {name: cls for name, cls in sections.items() if name != "loss"}
  lines = ["fields of a config, as flags --config.SECTION.FIELD=VALUE:"]
  lines += field_docs.lines(shared)
  lines += ["", f"loss: `name` is one of {', '.join(by_loss)}, or module:Name"]
  for name, sections in by_loss.items():
    head = lambda section, cls, name=name: f"{section}.name={name}: {field_docs.summary(cls)}"
    lines += field_docs.lines({"loss": sections["loss"]}, head=head)
  return "\n".join(lines)


def sections_of(config: ConfigDict, is_sweep: bool) -> Mapping[str, type]:
  """Section -> dataclass of a config; a sweep's `decoder` is apart, as its fields are a method's."""
  if is_sweep:
    found: dict[str, type] = dict(_SWEEP)
  else:
    collects = trajectories.SECTIONS if "collect" in config else {}
    found = {**settings.schema(config), **collects}
  return {name: class_for(cls, config.get(name, {})) for name, cls in found.items()}


def of_config(config: ConfigDict, given: Mapping[str, Any], is_sweep: bool) -> str:
  """The sections of one config; `*` marks the fields that it sets.

  Args:
    given: dotted field -> value, of those.
    is_sweep: whether it is one of the verb `sweep`.
  """
  return "\n".join(field_docs.lines(sections_of(config, is_sweep), given))
