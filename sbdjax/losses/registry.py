"""Losses by name: those of the package, those registered from Python, and `module:Name`.

A loss of one's own is one of two things, in a module that Python can import:

  a class     a frozen dataclass derived from `Loss`: its fields are the settings, called objects
              are the loss (`sbdjax.losses.base` has the signature)
  a function  make(gamma: float = 0.5, ...) -> loss_fn: its arguments, all with a type and a default,
              are the settings; it returns (lm, params, batch, key) -> (loss_sum, weight, metrics).
              What evaluations measure and how the model is decoded can only be said by a class

Either is named in a config or as a flag, `--config.loss.name=my_lab.losses:make
--config.loss.gamma=0.2`, or given a name of its own by `register`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any

from sbdjax.errors import UsageError
from sbdjax.losses.base import Loss, LossFn
from sbdjax.losses.block_diffusion import BlockDiffusionLoss
from sbdjax.losses.jacobi import JacobiLoss
from sbdjax.losses.mdm import MDMLoss
from sbdjax.losses.ntp import NTPLoss
from sbdjax.losses.sbd import SBDLoss
from sbdjax.losses.sdtt import SDTTLoss
from sbdjax.losses.ssmd import SSMDLoss
from sbdjax.settings import import_object, nearest

_LOSSES: dict[str, type[Loss]] = {
  "ntp": NTPLoss,
  "sbd": SBDLoss,
  "block_diffusion": BlockDiffusionLoss,
  "jacobi": JacobiLoss,
  "mdm": MDMLoss,
  "ssmd": SSMDLoss,
  "sdtt": SDTTLoss,
}


def names() -> tuple[str, ...]:
  """The registered names."""
  return tuple(_LOSSES)


def register(name: str, loss: type[Loss] | Callable[..., LossFn]) -> type[Loss]:
  """Gives a loss a name for configs, flags and records.

  Args:
    name: what `config.loss.name` calls it; without ":".
    loss: a class or a function, as this module's docstring has it. Registered again under its name
      (a notebook's cell run twice), the later one counts.

  Returns:
    The class whose fields are the settings: `loss` itself, or one made of the function.

  Raises:
    UsageError: a name that another loss has, or something that is no loss.
  """
  if not name or ":" in name:
    raise UsageError(f"a loss cannot be registered as {name!r}: choose a name without ':'")
  cls = as_class(loss, f"register({name!r}, ...)")
  known = _LOSSES.get(name, cls)
  if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
    raise UsageError(f"the name {name!r} is taken by {known.__qualname__}: choose another")
  _LOSSES[name] = cls
  return cls


def get(name: str, where: str = "loss.name") -> type[Loss]:
  """The class of a loss: its fields are its settings, and an object of it is the loss.

  Args:
    name: a registered name, or `module:Name`.
    where: what to call the setting in messages.

  Raises:
    UsageError: an unknown name (the nearest is named), a module that cannot be imported or lacks
      the name, or something that is no loss.
  """
  if isinstance(name, str) and name in _LOSSES:
    return _LOSSES[name]
  if isinstance(name, str) and ":" in name:
    return as_class(import_object(name, where), f"{where}={name!r}")
  raise UsageError(
    f"{where}={name!r}{nearest(str(name), _LOSSES)}: choose one of {', '.join(_LOSSES)}, or "
    "module:Name"
  )


def as_class(loss: Any, where: str) -> type[Loss]:
  """`loss` itself where it is a class of losses, else the class made of a function.

  Raises:
    UsageError: it is neither.
  """
  if isinstance(loss, type) and issubclass(loss, Loss) and dataclasses.is_dataclass(loss):
    return loss
  if inspect.isfunction(loss):
    return _of_function(loss)
  raise UsageError(
    f"{where} is no loss: give a dataclass derived from sbdjax.losses.Loss, or a function whose "
    "arguments are settings and that returns a loss function"
  )


@functools.cache
def _of_function(make: Callable[..., LossFn]) -> type[Loss]:
  """A class of losses whose fields are the arguments of `make`."""
  where = f"{make.__module__}:{make.__qualname__}"
  hints, fields = typing.get_type_hints(make), []
  for name, argument in inspect.signature(make).parameters.items():
    if name not in hints or argument.default is inspect.Parameter.empty:
      raise UsageError(
        f"{where}: its argument {name} is a setting: give it a type and a default, like "
        f"{name}: float = 1.0"
      )
    fields.append((name, hints[name], dataclasses.field(default=argument.default)))

  def post_init(self: Any) -> None:
    made = make(**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)})
    if not callable(made):
      raise UsageError(f"{where} returned {made!r}, which is no loss function")
    object.__setattr__(self, "_loss_fn", made)

  def call(self: Any, lm: Any, params: Any, batch: Any, key: Any) -> Any:
    return self._loss_fn(lm, params, batch, key)

  namespace = {
    "__doc__": make.__doc__,
    "__module__": make.__module__,
    "__post_init__": post_init,
    "__call__": call,
  }
  cls = dataclasses.make_dataclass(
    make.__name__, fields, bases=(Loss,), namespace=namespace, frozen=True
  )
  cls.__qualname__ = make.__qualname__
  return cls
