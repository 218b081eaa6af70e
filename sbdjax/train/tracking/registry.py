"""Writers by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sbdjax.errors import UsageError
from sbdjax.settings import import_object, nearest
from sbdjax.train.tracking import wandb_writer
from sbdjax.train.tracking.tensorboard import TensorBoard
from sbdjax.train.tracking.writer import Writer


def _wandb() -> type[Writer]:
  wandb_writer.module()  # says now if it is not there
  return wandb_writer.Wandb


_WRITERS: dict[str, Callable[[], type[Writer]]] = {
  "tensorboard": lambda: TensorBoard,
  "wandb": _wandb,
}


def find(names: Sequence[str]) -> list[type[Writer]]:
  """The writers that a config names.

  Raises:
    UsageError: an unknown name (the nearest is told), a library that is not installed, or something
      that is no writer.
  """
  return [_find(name) for name in names]


def _find(name: str) -> type[Writer]:
  if name in _WRITERS:
    return _WRITERS[name]()
  if ":" not in name:
    raise UsageError(
      f"tracking.writers: there is no {name!r}{nearest(name, _WRITERS)}: choose "
      f"{', '.join(_WRITERS)}, or module:Name"
    )
  found = import_object(name, "tracking.writers")
  if not (isinstance(found, type) and issubclass(found, Writer)):
    raise UsageError(
      f"tracking.writers={name!r} is no writer: derive a class from "
      "sbdjax.train.tracking.writer.Writer"
    )
  return found
