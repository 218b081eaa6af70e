"""Configs that ship with the package, one module for each: `--config=preset:NAME[:VARIANT]`.

A preset is a config file that is opened by name: a module with `get_config`, named
`<data or model>_<method>`. One that has variants declares them as `VARIANTS`, and its `get_config`
looks them up there. Presets import ml_collections alone, so that they can be listed without JAX.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from sbdjax.errors import UsageError
from sbdjax.settings import nearest

T = TypeVar("T")

# What 0.1.0 called configs/NAME.py -> its name now. They go in 0.3.
RENAMED = {
  "freedave_stories_sweep": "stories_freedave_sweep",
  "jacobi_qwen25_coder_7b": "qwen25_coder_7b_jacobi",
  "jacobi_search": "stories_jacobi_search",
  "jacobi_stories": "stories_jacobi",
  "jacobi_stories_sweep": "stories_jacobi_sweep",
  "quickstart": "stories_sbd_quickstart",
  "sbd_3b": "llama_3b_sbd",
  "sbd_llama31_8b": "llama31_8b_sbd",
  "sbd_qwen3_8b": "qwen3_8b_sbd",
  "sbd_steps_sweep": "stories_sbd_steps_sweep",
  "sbd_stories_sweep": "stories_sbd_sweep",
  "sbd_verified_sweep": "stories_sbd_verified_sweep",
  "ssmd_esm2_150m": "esm2_150m_ssmd",
  "ssmd_owt": "owt_ssmd",
}


def names() -> list[str]:
  """The presets, by name; none of them is imported."""
  return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Any:
  """The config of a preset, an `ml_collections.ConfigDict` to change and to train with.

  Args:
    name: "NAME" or "NAME:VARIANT".

  Raises:
    UsageError: there is no such preset or variant.

  Example:
    config = sbdjax.presets.load("stories_sbd:recipe")
    config.train.steps = 100
    sbdjax.train(config, "runs/mine")
  """
  preset, *variant = name.split(":", 1)
  preset = RENAMED.get(preset, preset)
  if preset not in names():
    raise UsageError(f"no preset {preset!r}{nearest(preset, names())}: choose one of {names()}")
  return importlib.import_module(f"sbdjax.presets.{preset}").get_config(*variant)


@dataclasses.dataclass(frozen=True)
class Variants(Generic[T]):
  """What may follow `preset:NAME:`, and what `get_config` makes of it.

  Attributes:
    named: variant -> what it stands for; the first is the default.
    form: how the variants without a name are written, like "DEVICES"; empty: there are none.
    read: what a variant of that form stands for; raises ValueError for other text.
  """

  named: Mapping[str, T]
  form: str = ""
  read: Callable[[str], T] | None = None

  @property
  def default(self) -> str:
    """The variant of `preset:NAME` alone."""
    return next(iter(self.named))

  def __iter__(self) -> Iterator[str]:
    """What users are told: the names, then the form."""
    yield from self.named
    if self.form:
      yield self.form

  def __getitem__(self, variant: str) -> T:
    """What `variant` stands for. Raises UsageError where there is no such variant."""
    if variant in self.named:
      return self.named[variant]
    try:
      if self.read is not None:
        return self.read(variant)
    except ValueError:
      pass
    raise UsageError(f"no variant {variant!r}: choose one of {' | '.join(self)}")
