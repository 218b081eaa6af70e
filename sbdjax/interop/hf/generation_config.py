"""generation_config.json: the decoding settings its authors recommend, under our names and back."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any, TypedDict

from sbdjax import foreign
from sbdjax.interop.settings import GenerationDefaults

_LENGTH = {"max_tokens": "max_new_tokens"}
_CUTS = {"top_k": "top_k", "top_p": "top_p"}


class _File(TypedDict, total=False):
  """What is read of generation_config.json."""

  eos_token_id: int | list[int] | None
  do_sample: bool | None
  temperature: float | None
  top_k: int | None
  top_p: float | None
  max_new_tokens: int | None


def read(path: pathlib.Path) -> dict[str, Any]:
  """The file, or {} where there is none. Raises CheckpointError for anything else."""
  if not path.is_file():
    return {}
  return foreign.read_json(foreign.contained(path.parent, path), _File)


def read_decoding(found: Mapping[str, Any]) -> dict[str, Any]:
  """Decoder settings that the file sets, by their names in `decode.flat_names`; temperature 0 is greedy.

  Whether "do_sample" is set decides, as in transformers: where it is false, the file's temperature,
  top_k and top_p mean nothing; where it is missing, nothing is recommended.
  """
  decoding = {ours: found[key] for ours, key in _LENGTH.items() if found.get(key) is not None}
  if found.get("do_sample") is None:
    return decoding
  if not found["do_sample"]:
    return decoding | {"temperature": 0.0}
  temperature = 1.0 if found.get("temperature") is None else float(found["temperature"])
  cuts = {ours: found[key] for ours, key in _CUTS.items() if found.get(key) is not None}
  return decoding | {"temperature": temperature} | cuts


def write(settings: Mapping[str, Any], generation: GenerationDefaults) -> dict[str, Any]:
  """The file's contents: eos, bos and padding as in `settings` (config.json), and decoding."""
  keys = ("bos_token_id", "eos_token_id", "pad_token_id")
  found = {key: settings[key] for key in keys if settings.get(key) is not None}
  decoding = dict(generation.decoding)
  found |= {key: decoding[ours] for ours, key in (_LENGTH | _CUTS).items() if ours in decoding}
  temperature = decoding.get("temperature")
  if temperature is not None:
    found["do_sample"] = temperature > 0
  return found | ({"temperature": temperature} if temperature else {})
