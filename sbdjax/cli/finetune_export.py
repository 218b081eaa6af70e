"""The end of a fine-tuning run: a Hugging Face folder with a model card."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from sbdjax.cli import convert
from sbdjax.cli.finetune_recipes import RECIPES
from sbdjax.data.files import write_atomically
from sbdjax.errors import UsageError
from sbdjax.foreign import read_json
from sbdjax.interop.pretrained import STORED, Pretrained, load_pretrained
from sbdjax.nn import adapter
from sbdjax.train import checkpoints

CARD, ADAPTER = "README.md", "adapter.safetensors"
# Beside the folder: of which step it is.
_STAMP = "exported.json"
_SHARD_BYTES = 5_000_000_000


def export(
  folder: pathlib.Path,
  workdir: pathlib.Path,
  base: str,
  method: str,
  dtype: str | None,
  console: Console,
) -> None:
  """Writes the model of a training workdir, unless it is there; of another step, in its place.

  Args:
    folder: to write.
    workdir: of the run that has ended.
    base: what the run started from, as the user named it.
    method: a key of `RECIPES`.
    dtype: of the weights; None: that of `base`.
    console: for what to do next.

  Raises:
    UsageError, CheckpointError: it cannot be written.
  """
  stamp = folder.parent / _STAMP
  now = {"step": checkpoints.steps(workdir)[-1], "dtype": dtype}
  done = stamp.is_file() and folder.is_dir() and read_json(stamp) == now
  if not done:
    if stamp.is_file() and folder.is_dir():  # ours, of an earlier end
      shutil.rmtree(folder)
    model = load_pretrained(workdir, dtype=dtype or _dtype_of(base))
    _write(folder, model, dtype)
    text = card(folder.parent.name, workdir, base, method)
    write_atomically(folder / CARD, lambda file: file.write(text.encode()))
    write_atomically(stamp, lambda file: file.write((json.dumps(now) + "\n").encode()))
  console.print(f"model: {folder}\n\n" + "\n".join(_next(folder, base, method)), markup=False)


def _dtype_of(base: str) -> str:
  return load_pretrained(base, dtype=STORED).lm.config.param_dtype


def _write(folder: pathlib.Path, model: Pretrained, dtype: str | None) -> None:
  """The directory; of an adapter on a model that Hugging Face orders otherwise, the adapter alone."""
  config = model.lm.config
  if config.adapter is not None and config.rope_interleaved:
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder / ADAPTER
  convert.write(model, folder, dtype or adapter.DTYPE, _SHARD_BYTES)


def _checkpoint(folder: pathlib.Path, base: str) -> str:
  """The flags that open what was written."""
  has_model = (folder / "config.json").is_file()
  flags = [f"--checkpoint={folder if has_model else base}"]
  if (folder / ADAPTER).is_file():
    flags.append(f"--adapter={folder / ADAPTER}")
  return " ".join(flags)


def _next(folder: pathlib.Path, base: str, method: str) -> list[str]:
  """Commands to go on with."""
  opened = _checkpoint(folder, base)
  decoder = " ".join(f"--decoder.{word}" for word in RECIPES[method].decoder.split())
  return [
    f'  python -m sbdjax generate {opened} {decoder} --prompt="..."',
    f"  python -m sbdjax evaluate {opened}",
  ]


def card(name: str, workdir: pathlib.Path, base: str, method: str) -> str:
  """The model card: what it was made of, how, and what came out.

  Raises:
    UsageError: the workdir holds no settings.
  """
  settings, recipe = read_json(workdir / "config.json", error=UsageError), RECIPES[method]
  resolved = settings["resolved"]
  front = {
    "base_model": base,
    "library_name": "transformers",
    "tags": ["sbdjax", method],
    "pipeline_tag": "text-generation",
  }
  lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in front.items()), "---", ""]
  lines += [f"# {name}", "", f"{base}, fine-tuned by `{method}`: {recipe.title}.", ""]
  lines += ["## Data", "", resolved["data"], "", "## Settings", "", "| field | value |", "|---|---|"]
  shown = ("loss", "optim", "train", "data")
  for section in shown:
    lines += [f"| {section}.{k} | {_cell(v)} |" for k, v in settings[section].items() if v not in ("", None)]
  mask = resolved["model"].get("mask_id")
  lines += ["", f"Mask token: {'none' if mask is None else mask}.", "", "## Figures", ""]
  lines += _figures(workdir)
  decoder = " ".join(f"--decoder.{word}" for word in recipe.decoder.split())
  lines += ["", "## Use", "", "```bash"]
  lines += [f'python -m sbdjax generate --checkpoint=THIS_FOLDER {decoder} --prompt="..."', "```"]
  return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
  return str(value).replace("|", "\\|").replace("\n", " ")


def _figures(workdir: pathlib.Path) -> list[str]:
  """The last losses of training and of the held-out documents, per target token in nats."""
  found: dict[str, tuple[int, float]] = {}
  for entry in _entries(workdir / "metrics.jsonl"):
    for key, value in entry.items():
      if key.startswith(("train/", "eval/")) and isinstance(value, float):
        found[key] = entry["step"], value
  kept = {k: v for k, v in found.items() if k.endswith(("loss", "accuracy", "nelbo", "agreement"))}
  if not kept:
    return ["(none were recorded)"]
  rows = [f"| {name} | {value:.4f} | {step} |" for name, (step, value) in sorted(kept.items())]
  return ["| metric | value | update |", "|---|---|---|", *rows]


def _entries(path: pathlib.Path) -> list[Mapping[str, Any]]:
  try:
    return [json.loads(line) for line in path.read_text().splitlines()]
  except (OSError, ValueError):
    return []
