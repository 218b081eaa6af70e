"""Converts pickled weights once: python -m sbdjax.interop.unpickle FOLDER OUT

FOLDER holds torch's `pytorch_model*.bin`; OUT becomes a folder of the same tensors as safetensors,
with FOLDER's settings and tokenizer files, which `load_pretrained` opens where it knows the
architecture. Needs torch (`pip install "sbdjax[parity]"`), whose loader builds nothing but tensors
and plain containers with `weights_only=True`. That restriction is torch's promise and not this
package's: nothing else here unpickles, and this does not unless it is run by name.
"""

from __future__ import annotations

import pathlib
import shutil
import sys
from typing import Any

from sbdjax.data import tokenizers
from sbdjax.errors import CheckpointError, SbdjaxError, UsageError
from sbdjax.failures import one_line
from sbdjax.foreign import contained
from sbdjax.interop.hf import save, tensor_files

# Before it, `weights_only` could be got around (CVE-2025-32434).
_OLDEST = (2, 6)
_WEIGHTS = "pytorch_model*.bin"


def convert(folder: pathlib.Path, out: pathlib.Path) -> None:
  """Writes the weights and files of `folder` to the new or empty folder `out`.

  Raises:
    UsageError: torch is missing or too old, or `out` is taken.
    CheckpointError: no pickled weights, or such that hold more than tensors.
  """
  torch = _torch()
  pickles = sorted(folder.glob(_WEIGHTS))
  if not pickles:
    raise CheckpointError(f"{folder} holds no {_WEIGHTS}")
  tensors: dict[str, Any] = {}
  for file in pickles:
    tensors |= _read(torch, contained(folder, file))
  from safetensors.torch import save_file

  with save.new_folder(out) as temporary:
    for name in (tensor_files.CONFIG, tensor_files.GENERATION, *tokenizers.FILES):
      if (folder / name).is_file():
        shutil.copy(contained(folder, folder / name), temporary)
    # Tied tensors share their memory, which safetensors does not write.
    whole = {name: x.detach().clone().contiguous() for name, x in tensors.items()}
    save_file(whole, temporary / tensor_files.SINGLE, metadata={"format": "pt"})


def _torch() -> Any:
  try:
    import torch
  except ImportError as error:
    raise UsageError(
      'unpickling needs torch, which is not installed: pip install "sbdjax[parity]"'
    ) from error
  if tuple(map(int, torch.__version__.split(".")[:2])) < _OLDEST:
    raise UsageError(
      f"torch {torch.__version__} does not keep pickles from running code: install 2.6 or newer"
    )
  return torch


def _read(torch: Any, file: pathlib.Path) -> dict[str, Any]:
  """The tensors of one file by name; their kind is checked, their values are not."""
  try:
    found = torch.load(file, map_location="cpu", weights_only=True)
  except Exception as error:  # pickle, zip and torch raise what they like
    raise CheckpointError(f"torch refuses {file}: {one_line(error)}") from error
  if not isinstance(found, dict) or not all(isinstance(x, torch.Tensor) for x in found.values()):
    raise CheckpointError(f"{file} holds more than named tensors: it is no state_dict")
  return found


def main(argv: list[str]) -> int:
  """Runs the command; returns the exit code."""
  if len(argv) != 2 or any(x.startswith("-") for x in argv):
    print("usage: python -m sbdjax.interop.unpickle FOLDER OUT", file=sys.stderr)
    return 2
  folder, out = (pathlib.Path(x).expanduser() for x in argv)
  try:
    convert(folder, out)
  except SbdjaxError as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  for path in sorted(out.iterdir()):
    print(f"{path.stat().st_size:>15,}  {path}")
  return 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
