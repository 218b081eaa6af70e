"""Shared by the tests: where optional reference files lie, and config files to open."""

import os
import pathlib

import pytest

_ROOT = pathlib.Path(__file__).resolve().parent.parent


def shared_dir() -> pathlib.Path | None:
  """The folder of reference data beside the project, or None where there is none."""
  path = pathlib.Path(os.environ.get("SBDJAX_SHARED", _ROOT.parent / "shared"))
  return path if path.is_dir() else None


def require_shared(*parts: str) -> pathlib.Path:
  """`shared_dir() / parts`, or a skip that says what is missing."""
  root = shared_dir()
  if root is None or not root.joinpath(*parts).exists():
    pytest.skip(f"reference file {'/'.join(parts)} is not beside this checkout")
  return root.joinpath(*parts)


def golden_roots() -> list[pathlib.Path]:
  """Folders of expected outputs: those of the repository, and more sets beside the project."""
  shared = shared_dir()
  more = [] if shared is None else [shared / "goldens"]
  return [root for root in (_ROOT / "tests" / "goldens", *more) if root.is_dir()]


def golden_file(*parts: str) -> pathlib.Path:
  """The file or folder `parts` of the expected outputs.

  Raises:
    FileNotFoundError: it is nowhere, though the repository holds set A.
  """
  for root in golden_roots():
    if root.joinpath(*parts).exists():
      return root.joinpath(*parts)
  raise FileNotFoundError(f"no expected outputs {'/'.join(parts)} in {golden_roots()}")


def goldens(pattern: str) -> list[pathlib.Path]:
  """The expected outputs whose names fit `pattern`, of every set there is, in order of names."""
  found = {path.name: path for root in golden_roots()[::-1] for path in root.glob(pattern)}
  return [found[name] for name in sorted(found)]


def sibling_configs(folder, value):
  """A folder with config files that share a base, imported in each possible way."""
  folder.mkdir(parents=True)
  (folder / "base.py").write_text(f"def get_config(): return {{'value': {value}}}\n")
  uses = {"plain": "import base", "package": f"from {folder.name} import base"}
  for name, line in uses.items():
    (folder / f"{name}.py").write_text(f"{line}\nget_config = base.get_config\n")
  (folder / "late.py").write_text("def get_config():\n  import base\n  return base.get_config()\n")
  return [folder / f"{name}.py" for name in (*uses, "late")]
