"""What a result depends on besides its configuration: code version, packages, devices."""

from __future__ import annotations

import importlib.metadata
import pathlib
import platform
import subprocess
import sys
from typing import Any

import jax

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "sbdjax")


def _version(package: str) -> str | None:
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None


def _git(*args: str) -> str | None:
  """Output of a git command in this package's checkout, or None where it is not one."""
  folder = pathlib.Path(__file__).resolve().parents[2]
  if not (folder / ".git").exists():
    return None
  try:
    done = subprocess.run(
      ["git", "-C", str(folder), *args], capture_output=True, text=True, timeout=10, check=True
    )
  except (OSError, subprocess.SubprocessError):
    return None
  return done.stdout.strip()


def environment() -> dict[str, Any]:
  """JSON-like record of the program and machine: git commit, packages, Python, devices, command."""
  changes = _git("status", "--porcelain", "--untracked-files=no")
  return {
    "git_commit": _git("rev-parse", "HEAD"),
    "git_modified": None if changes is None else bool(changes),
    "packages": {name: _version(name) for name in _PACKAGES},
    "python": platform.python_version(),
    "platform": platform.platform(),
    "devices": [f"{d.platform}: {d.device_kind}" for d in jax.devices()],
    "processes": jax.process_count(),
    "command": sys.argv,
  }
