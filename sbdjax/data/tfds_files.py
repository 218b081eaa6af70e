"""The files of a TFDS data set, checked before TFDS reads them.

TFDS imports the module that a features.json names and makes an object of the class: whoever wrote
the folder chooses what runs. Here it may name the few classes that this package writes, which are
imported already, and shards that lie in the folder.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable
from typing import Any, TypedDict

from sbdjax.errors import DataError
from sbdjax.foreign import check, contained, read_json

FEATURES, INFO = "features.json", "dataset_info.json"
_PLACE = "tensorflow_datasets.core.features."
_DICT = f"{_PLACE}features_dict.FeaturesDict"
# Class -> the key of its settings.
_CLASSES = {
  _DICT: "featuresDict",
  f"{_PLACE}tensor_feature.Tensor": "tensor",
  f"{_PLACE}scalar.Scalar": "tensor",
  f"{_PLACE}text_feature.Text": "text",
}
_SETTINGS = frozenset({"shape", "dtype", "encoding", "vocabulary", "dimensions"})


class _Split(TypedDict, total=False):
  """What is read of a split in dataset_info.json."""

  name: str
  filepathTemplate: str
  shardLengths: list[str | int]


class _Info(TypedDict, total=False):
  """dataset_info.json."""

  name: str
  moduleName: str
  fileFormat: str
  splits: list[_Split]


def check_folder(folder: pathlib.Path) -> None:
  """Checks one prepared data set.

  Raises:
    DataError: a feature class that this package does not write, a file outside of the folder, or
      files that are no such metadata.
  """
  path = contained(folder, folder / FEATURES, DataError)
  _check_feature(read_json(path, dict[str, Any], DataError), str(path), 0)
  path = contained(folder, folder / INFO, DataError)
  for split in read_json(path, _Info, DataError).get("splits", ()):
    template = split.get("filepathTemplate", "")
    if "/" in template or "\\" in template or ".." in template:
      raise DataError(f"{path}: splits: {template!r} does not lie in {folder}")
  for file in folder.iterdir():
    contained(folder, file, DataError)


def check_below(folder: pathlib.Path) -> None:
  """Checks every data set in a folder and the folders in it, as deep as versions of configs lie."""
  for pattern in (FEATURES, *(f"{'*/' * depth}{FEATURES}" for depth in range(1, 4))):
    for file in folder.glob(pattern):
      check_folder(file.parent)


def _check_feature(node: Any, where: str, depth: int) -> None:
  """Raises DataError unless `node` describes a feature by one of our classes, and those in it."""
  check(node, dict[str, Any], where, DataError)
  name = node.get("pythonClassName")
  if not isinstance(name, str) or name not in _CLASSES:
    raise DataError(
      f"{where}: pythonClassName is {str(name)[:80]!r}, and to read it would run that code: supported are "
      f"{_names(_CLASSES)}"
    )
  key = _CLASSES[name]
  _refuse_others(node, {"pythonClassName", "description", key}, where)
  settings = check(node.get(key, {}), dict[str, Any], f"{where}: {key}", DataError)
  if name != _DICT:
    _refuse_others(settings, _SETTINGS, f"{where}: {key}")
    return
  _refuse_others(settings, {"features"}, f"{where}: {key}")
  if depth == 8:
    raise DataError(f"{where}: features are nested too deep")
  features = check(settings.get("features", {}), dict[str, Any], where, DataError)
  for name, feature in features.items():
    _check_feature(feature, f"{where}: {name}", depth + 1)


def _refuse_others(node: dict[str, Any], known: Iterable[str], where: str) -> None:
  others = sorted(node.keys() - set(known))
  if others:
    raise DataError(f"{where} has {others[0]!r}, which data sets of this package do not have")


def _names(classes: Iterable[str]) -> str:
  return ", ".join(name.rpartition(".")[2] for name in classes)
