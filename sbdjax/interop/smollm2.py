"""SmolLM2-135M-Instruct (Hugging Face, Apache-2.0): where its file lies once it is installed."""

from __future__ import annotations

import os
import pathlib

from sbdjax.errors import CheckpointError

NAME = "smollm2-135m"
# The same with a drafting adapter that this package ships, see experiments/smollm2.
WITH_ADAPTER = "smollm2-135m-sbd"
ADAPTER = "smollm2_135m_sbd_adapter.safetensors"
# N-grams of its answers to prompts like those that the adapter was trained on.
NGRAMS = "asset:smollm2_135m_ngrams.safetensors"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def path() -> pathlib.Path:
  """Where `make smollm2` puts the file: in the user's cache folder, whichever way this package is
  installed."""
  cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
  return pathlib.Path(cache).expanduser() / "sbdjax" / FILE


def find() -> pathlib.Path:
  """The installed file. Raises CheckpointError where there is none."""
  file = path()
  if not file.is_file():
    raise CheckpointError(
      f"{NAME} is not installed ({file} is missing): run `make smollm2`, or anywhere "
      "`python -m sbdjax.interop.install_smollm2`"
    )
  return file
