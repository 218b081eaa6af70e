"""`train --dry_run`: parameters, bytes per device, and whether a run fits; no weight or text is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from sbdjax import plain_json
from sbdjax.chunks import CHUNK
from sbdjax.cli.trajectories import SECTIONS, CollectConfig
from sbdjax.data import config as data_config
from sbdjax.data.rows import padding_row
from sbdjax.errors import UsageError
from sbdjax.lm import LM
from sbdjax.losses.base import LossFn
from sbdjax.settings import to_dataclass
from sbdjax.sigma_lm import SigmaLM
from sbdjax.train.dry_run import Needs, needs
from sbdjax.train.settings import Settings, parse_settings
from sbdjax.train.topology import Target

_ROWS = (
  ("parameters", "params"),
  ("optimizer state", "optimizer"),
  ("moving average", "ema"),
  ("gradients", "gradients"),
  ("logits (one chunk)", "logits"),
  ("activations and workspace", "activations"),
)


def batch_shapes(config: ConfigDict, settings: Settings) -> dict[str, jax.ShapeDtypeStruct]:
  """What the pipeline would give for these settings, by shape and dtype.

  Args:
    config: the training config; of trajectories, `collect` tells the shape.
    settings: the same, parsed.
  """
  data, batch_size = settings.data, settings.train.batch_size
  if data.source == data_config.TRAJECTORIES:
    row = _trajectory_row(config, data)
  else:
    row = padding_row(data.seq_len)
  row["example_id"] = np.int32(0)
  shapes = {k: (batch_size, *np.shape(v)) for k, v in row.items()}
  return {k: jax.ShapeDtypeStruct(shapes[k], np.asarray(v).dtype) for k, v in row.items()}


def settings_of(config: ConfigDict) -> Settings:
  """The settings of a training config, with a place for what is still to be collected."""
  kept = {k: v for k, v in config.items() if k not in SECTIONS}
  training = ConfigDict(kept).copy_and_resolve_references().unlock()
  if "collect" in config and not training.data.path:
    training.data.path = "(to be collected)"
  return parse_settings(training)


def _trajectory_row(config: ConfigDict, data: data_config.DataConfig) -> dict[str, Any]:
  if "collect" not in config:
    raise UsageError("--dry_run of trajectories needs the section `collect` they are made with")
  collect = to_dataclass(CollectConfig, config.collect, "collect")
  blocks = min(collect.num_blocks, (data.seq_len - collect.longest) // collect.block_size)
  length = collect.longest + blocks * collect.block_size
  row = padding_row(length)
  noisy = np.zeros((1 if data.noise.blocks == "one" else blocks, collect.block_size), np.int32)
  return row | dict(noisy=noisy, start=np.int32(0))


def run(
  config: ConfigDict,
  settings: Settings,
  lm: LM | SigmaLM,
  loss_fn: LossFn,
  where: Target,
  devices: Sequence[Any],
  *,
  as_json: bool,
) -> int:
  """Prints what a run needs of each device.

  Args:
    config: the training config, overrides applied.
    settings: the same, parsed.
    lm: the model of the config.
    loss_fn: its loss.
    where, devices: from `train.topology.parse`, and what its `devices` gave.
    as_json: one line of JSON instead of a table.

  Returns:
    0 if it fits, 1 if not.

  Raises:
    UsageError: see `train.dry_run.needs`.
  """
  found = needs(
    lm,
    loss_fn,
    batch_shapes(config, settings),
    settings.optim,
    settings.train,
    settings.parallel,
    devices,
    memory_bytes=where.memory_bytes,
    chunk=getattr(settings.loss, "chunk", CHUNK),
  )
  if as_json:
    record = {"target": where.name, "devices": where.count} | found._asdict()
    record |= {"total": found.total, "fits": found.fits, "missing_client": where.missing}
    record |= {"parallel": dataclasses.asdict(settings.parallel)}
    print(plain_json.dumps(record))
  else:
    _print(found, where)
  return 0 if found.fits else 1


def _print(found: Needs, where: Target) -> None:
  table = Table(title=f"{found.num_params / 1e6:,.2f}M parameters on {where.name}", box=None)
  table.add_column(f"of each of the {where.count} devices")
  table.add_column("memory", justify="right")
  for label, field in _ROWS:
    if getattr(found, field):
      table.add_row(label, _amount(getattr(found, field)))
  table.add_row("[bold]peak of a step[/]", f"[bold]{_amount(found.total)}[/]")
  table.add_row("memory", _amount(found.memory))
  console = Console(highlight=False)
  console.print(table)
  verdict = "it fits" if found.fits else "[red]it does not fit[/]"
  how = f"compiled for {found.compiled_for} in {found.seconds:.0f} s"
  if where.missing:
    how += f" ({where.missing}: an estimate)"
  console.print(f"{verdict}; {how}")


def _amount(count: int) -> str:
  unit, name = (2**30, "GiB") if count >= 2**30 else (2**20, "MiB")
  return f"{count / unit:,.2f} {name}"
