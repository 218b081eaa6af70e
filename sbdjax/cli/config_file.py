"""Config files and presets: Python modules whose functions give a run's settings."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import pathlib
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from sbdjax.errors import UsageError


class ConfigFile(NamedTuple):
  """An opened config file or preset, and the variant that was asked for.

  Attributes:
    name: what messages call it, like "config file mine.py".
    module: what it defines.
    arguments: of its functions: the variant, or nothing.
    folder: where a file lies; None: a preset.
  """

  name: str
  module: types.ModuleType
  arguments: tuple[str, ...]
  folder: pathlib.Path | None = None

  def has(self, function: str) -> bool:
    """Whether it defines `function`."""
    return hasattr(self.module, function)

  def call(self, function: str) -> Any:
    """What `function` returns for the variant.

    Raises:
      UsageError: there is no such function or no such variant, or an import in it fails.
    """
    if not self.has(function):
      raise UsageError(f"{self.name} has no function {function}")
    try:
      with _importable(self.folder), _imports_of(self.name):
        return getattr(self.module, function)(*self.arguments)
    except UsageError as e:
      raise UsageError(f"{self.name}: {e}") from e
    except (TypeError, KeyError, ValueError) as e:
      wrong = "".join(f"has no variant {variant!r}" for variant in self.arguments)
      raise UsageError(f"{self.name} {wrong or 'cannot be evaluated'}: {e}") from e


def open_file(path: pathlib.Path, arguments: tuple[str, ...]) -> ConfigFile:
  """Runs a Python file. It may import what lies in its folder, and that folder as a package.

  Raises:
    UsageError: it is no Python, or an import in it fails.
  """
  name = f"config file {path}"
  spec = importlib.util.spec_from_file_location(path.stem, path)
  if spec is None or spec.loader is None:
    raise UsageError(f"{name} is not a Python file (*.py)")
  module = importlib.util.module_from_spec(spec)
  folder = path.resolve().parent
  try:
    with _importable(folder), _imports_of(name):
      spec.loader.exec_module(module)
  except SyntaxError as e:
    raise UsageError(f"config file {e.filename} line {e.lineno}: {e.msg}") from e
  return ConfigFile(name, module, arguments, folder)


def open_preset(name: str, arguments: tuple[str, ...]) -> ConfigFile:
  """Imports the preset called `name`, which must exist."""
  module = importlib.import_module(f"sbdjax.presets.{name}")
  return ConfigFile(f"preset {name}", module, arguments)


@contextlib.contextmanager
def _importable(folder: pathlib.Path | None) -> Iterator[None]:
  """Puts `folder` and its parent first on the path.

  Modules that lie in the folder itself are forgotten afterwards: the next config file may lie in
  another folder with modules of the same names.
  """
  if folder is None:
    yield
    return
  places = [str(folder), str(folder.parent)]
  known = set(sys.modules)
  sys.path[:0] = places
  try:
    yield
  finally:
    for place in places:
      sys.path.remove(place)
    for name in set(sys.modules) - known:
      if _lies_in(sys.modules[name], folder):
        del sys.modules[name]


def _lies_in(module: types.ModuleType, folder: pathlib.Path) -> bool:
  """Whether a module is a file of `folder`, or `folder` as a package; deeper ones do not count."""
  if file := getattr(module, "__file__", None):
    return pathlib.Path(file).resolve().parent == folder
  return str(folder) in getattr(module, "__path__", ())


@contextlib.contextmanager
def _imports_of(name: str) -> Iterator[None]:
  try:
    yield
  except ModuleNotFoundError as e:
    raise UsageError(
      f"{name} imports {e.name!r}, which is neither installed nor beside the file"
    ) from e
  except ImportError as e:
    raise UsageError(f"{name}: {e}") from e
