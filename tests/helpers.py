"""Shared by the tests: where optional reference files lie."""

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
