"""Train a model: --config=FILE.py[:VARIANT] --workdir=DIR [--config.section.field=VALUE ...]

Sections of a config: `model` (TransformerConfig; with `init.checkpoint` only what differs from
it), `head` (HeadConfig; of the ssmd loss alone), `init` (InitConfig), `data` (DataConfig), `loss`
(`name` and the fields of that loss), `optim` (OptimConfig), `train` (TrainConfig), `parallel`
(ParallelConfig), `attention` (AttentionConfig). Fields left out have the defaults of these
dataclasses. Started again with the same workdir, a run goes on where it was. A config file with
`get_rounds` collects trajectories and trains in turns: see sbdjax/cli/rounds.py.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from sbdjax.cli import rounds, trajectories
from sbdjax.cli.common import (
  CONFIG_HELP,
  Parser,
  Schema,
  load_config,
  nearest,
  split_overrides,
  to_dataclass,
)
from sbdjax.data.config import DataConfig
from sbdjax.data.pipeline import make_eval, make_pipeline
from sbdjax.data.tokenizers import Tokenizer, load_tokenizer
from sbdjax.errors import UsageError
from sbdjax.interop.mask_token import add_mask_token, reserved
from sbdjax.interop.pretrained import check_params, check_vocabulary, load_pretrained
from sbdjax.kernels import backend
from sbdjax.lm import LM, make_lm
from sbdjax.losses import block_diffusion, jacobi, mdm, ntp, sbd, ssmd
from sbdjax.nn.config import check_attention
from sbdjax.nn.sigma import HeadConfig
from sbdjax.nn.transformer import TransformerConfig
from sbdjax.sigma_lm import SigmaLM, make_sigma_lm
from sbdjax.train import topology
from sbdjax.train.dropout import with_dropout
from sbdjax.train.host_memory import keep_freed_memory
from sbdjax.train.optim import OptimConfig
from sbdjax.train.parallel import ParallelConfig, initialize_distributed
from sbdjax.train.state import TrainState
from sbdjax.train.step import LossFn
from sbdjax.train.trainer import Task, TrainConfig, train


class LossChoice(NamedTuple):
  """A loss by name.

  Attributes:
    config: the dataclass of its settings.
    make: settings -> loss function.
    evaluated: settings -> the settings with which evaluations measure it.
    generation: settings -> how the trained model is decoded, as fields of GenerationDefaults.
    has_head: it trains causal blocks on top of the model; a config has a section `head`.
  """

  config: type
  make: Callable[[Any], Callable]
  evaluated: Callable[[Any], Any] = lambda settings: settings
  generation: Callable[[Any], dict[str, Any]] = lambda settings: {}
  has_head: bool = False


LOSSES: dict[str, LossChoice] = {
  "ntp": LossChoice(ntp.NTPLossConfig, ntp.make_loss),
  "sbd": LossChoice(sbd.SBDLossConfig, sbd.make_loss),
  "block_diffusion": LossChoice(
    block_diffusion.BlockDiffusionLossConfig,
    block_diffusion.make_loss,
    evaluated=block_diffusion.bound,
    generation=block_diffusion.generation,
  ),
  "jacobi": LossChoice(jacobi.JacobiLossConfig, jacobi.make_loss),
  "mdm": LossChoice(
    mdm.MDMLossConfig, mdm.make_loss, evaluated=mdm.bound, generation=mdm.generation
  ),
  "ssmd": LossChoice(
    ssmd.SSMDLossConfig,
    ssmd.make_loss,
    evaluated=mdm.bound,
    generation=mdm.generation,
    has_head=True,
  ),
}


@dataclasses.dataclass(frozen=True)
class InitConfig:
  """Where the parameters start.

  Attributes:
    checkpoint: what `load_pretrained` opens (an embedded name, a file, a workdir); empty: random.
    mask_token: give the checkpoint's model a mask token (one more embedding row) if it has none.
  """

  checkpoint: str = ""
  mask_token: bool = False


@dataclasses.dataclass(frozen=True)
class AttentionConfig:
  """How attention is computed, which is a matter of the run and not of the model.

  Attributes:
    backend: "auto", "xla", "pallas_tpu", "pallas_gpu" or "cudnn"; see `kernels.backend`.
  """

  backend: str = "auto"

  def __post_init__(self):
    check_attention(self.backend, "attention.backend")


class Settings(NamedTuple):
  """A config as frozen dataclasses; `model` stays a mapping until the checkpoint is known.

  `head` is None where the loss trains none.
  """

  model: dict[str, Any]
  init: InitConfig
  data: DataConfig
  loss: Any
  loss_name: str
  optim: OptimConfig
  train: TrainConfig
  parallel: ParallelConfig
  attention: AttentionConfig
  head: HeadConfig | None = None


def loss_choice(config: ConfigDict) -> LossChoice:
  """The entry of LOSSES that `config.loss.name` names. Raises UsageError for none."""
  name = config.get("loss", {}).get("name")
  if name not in LOSSES:
    raise UsageError(
      f"config.loss.name={name!r}{nearest(str(name), LOSSES)}: choose one of {', '.join(LOSSES)}"
    )
  return LOSSES[name]


def schema(config: ConfigDict) -> Schema:
  """Section -> dataclass, of a training config."""
  choice = loss_choice(config)
  sections = {
    "model": TransformerConfig,
    "init": InitConfig,
    "data": DataConfig,
    "loss": choice.config,
    "optim": OptimConfig,
    "train": TrainConfig,
    "parallel": ParallelConfig,
    "attention": AttentionConfig,
  }
  return sections | ({"head": HeadConfig} if choice.has_head else {})


def parse_settings(config: ConfigDict) -> Settings:
  """Checks a config and turns it into dataclasses.

  Raises:
    UsageError: an unknown section or field, a missing one, a wrong type, or a value out of range.
  """
  sections = schema(config)
  for name in config:
    if name not in sections:
      raise UsageError(
        f"unknown section config.{name}{nearest(name, sections)}: choose from {', '.join(sections)}"
      )
  built = {
    name: to_dataclass(
      cls, {k: v for k, v in config.get(name, {}).items() if (name, k) != ("loss", "name")}, name
    )
    for name, cls in sections.items()
    if name != "model"
  }
  model = config.get("model", ConfigDict()).to_dict()
  return Settings(**built, model=model, loss_name=config.loss.name)


def _build(fields: dict[str, Any], settings: Settings) -> LM | SigmaLM:
  config, how = to_dataclass(TransformerConfig, fields, "model"), settings.attention.backend
  if settings.head is None:
    return make_lm(config, how)
  return make_sigma_lm(config, settings.head, how)


def _with_head(lm: SigmaLM, trunk: Any, seed: int) -> Any:
  """Parameters of which the causal blocks are new."""
  return {"trunk": trunk, "head": jax.jit(lambda key: lm.init(key)["head"])(jax.random.key(seed))}


def _open_model(settings: Settings, tokenizer: Tokenizer) -> tuple[LM | SigmaLM, Any, list[int]]:
  """The model, its starting parameters (None: random) and the tokens that end a text.

  Raises:
    UsageError, CheckpointError: the checkpoint, the model section and the tokenizer do not fit.
  """
  init, data = settings.init, settings.data
  if not init.checkpoint:
    if init.mask_token:
      raise UsageError("init.mask_token extends a checkpoint: without one, set model.mask_id")
    lm = _build(settings.model, settings)
    # Where documents follow one another unseparated, the next bos is the end mark of the last.
    bos = tokenizer.bos_id if data.add_bos and not data.separate_documents else None
    return lm, None, sorted({i for i in (bos, tokenizer.eos_id) if i is not None})
  pretrained = load_pretrained(init.checkpoint)
  model_config, params = pretrained.lm.config, pretrained.params
  if init.mask_token:
    model_config, params = add_mask_token(model_config, params)
  fields = {**dataclasses.asdict(model_config), **settings.model}
  lm = _build(fields, settings)
  opened_head = isinstance(pretrained.lm, SigmaLM)
  if settings.head is not None and not opened_head:
    params = _with_head(lm, params, settings.train.seed)
  elif settings.head is None and opened_head:
    params = params["trunk"]  # which is a masked-diffusion model
  check_params(lm, params, init.checkpoint)
  own = pretrained.tokenizer
  if own is not None and own.vocab_size != tokenizer.vocab_size:
    raise UsageError(
      f"data.tokenizer={data.tokenizer!r} has {tokenizer.vocab_size} tokens but checkpoint "
      f"{init.checkpoint} was trained with {own.vocab_size}: name its tokenizer"
    )
  return lm, params, list(pretrained.generation.eos_ids)


def _check_fit(
  lm: LM | SigmaLM, tokenizer: Tokenizer, settings: Settings, corpora: list[Any]
) -> None:
  """Raises an error where model, tokenizer and data do not fit together."""
  check_vocabulary(lm, tokenizer, "the model", settings.data.tokenizer)
  mask_id, own = lm.config.mask_id, {tokenizer.mask_id} | reserved(tokenizer)
  if mask_id is not None and mask_id < tokenizer.vocab_size and mask_id not in own:
    raise UsageError(
      f"model.mask_id={mask_id} is an ordinary token of {settings.data.tokenizer!r}: set it to "
      f"{tokenizer.vocab_size} and model.vocab_size to {tokenizer.vocab_size + 1} or more"
    )
  if settings.data.seq_len > lm.config.max_seq_len:
    raise UsageError(
      f"data.seq_len={settings.data.seq_len} exceeds model.max_seq_len={lm.config.max_seq_len}"
    )
  for corpus in corpora:
    largest = corpus.largest_token
    if largest >= lm.config.vocab_size:
      raise UsageError(
        f"{corpus.origin} contains token {largest} but model.vocab_size={lm.config.vocab_size}: "
        "tokenize it with the model's tokenizer or enlarge the model's vocabulary"
      )


def train_from_config(config: ConfigDict, workdir: str | pathlib.Path) -> TrainState:
  """Everything the verb does, for calls from Python.

  Args:
    config: as `get_config` returns it, overrides applied.
    workdir: see `sbdjax.train.trainer.train`.

  Returns:
    The last state.

  Raises:
    UsageError, DataError, CheckpointError, DivergedError: see `sbdjax.train.trainer.train`.
  """
  settings = parse_settings(config)
  if settings.parallel.distributed:
    initialize_distributed()
  if jax.default_backend() == "cpu":
    keep_freed_memory()
  tokenizer = load_tokenizer(settings.data.tokenizer)
  lm, params, eos_ids = _open_model(settings, tokenizer)
  backend.get(settings.attention.backend)  # says now if these devices do not have it
  shard = dict(process_index=jax.process_index(), process_count=jax.process_count())
  shard |= dict(batch_size=settings.train.batch_size, tokenizer=tokenizer)
  batches = make_pipeline(settings.data, "train", seed=settings.train.seed, **shard)
  eval_batches = None
  if settings.train.eval_every:
    max_batches = settings.train.eval_batches or None
    eval_batches = make_eval(settings.data, "validation", max_batches=max_batches, **shard)
  corpora = [b.corpus for b in (batches, eval_batches) if b is not None]
  _check_fit(lm, tokenizer, settings, corpora)
  choice = LOSSES[settings.loss_name]
  task = Task(
    lm=lm,
    loss_fn=_training_loss(settings, lm),
    eval_loss_fn=choice.make(choice.evaluated(settings.loss)),
    batches=batches,
    eval_batches=eval_batches,
    params=params,
  )
  try:
    return train(
      task,
      settings.optim,
      settings.train,
      settings.parallel,
      workdir,
      _record(settings, lm, eos_ids, batches.corpus.origin),
    )
  finally:
    batches.close()


def _training_loss(settings: Settings, lm: LM | SigmaLM) -> LossFn:
  loss_fn = LOSSES[settings.loss_name].make(settings.loss)
  return with_dropout(loss_fn) if lm.config.dropout else loss_fn


def _record(
  settings: Settings, lm: LM | SigmaLM, eos_ids: list[int], origin: str
) -> dict[str, Any]:
  """config.json: every field with its value, and under `resolved` what decoding needs."""
  sections = {
    name: dataclasses.asdict(getattr(settings, name))
    for name in ("init", "data", "loss", "optim", "train", "parallel", "attention")
  }
  if settings.head is not None:
    sections["head"] = dataclasses.asdict(settings.head)
  sections["loss"] = {"name": settings.loss_name} | sections["loss"]
  path = pathlib.Path(settings.data.tokenizer)
  resolved = {
    "model": dataclasses.asdict(lm.config),
    "tokenizer": str(path.resolve()) if path.exists() else settings.data.tokenizer,
    "eos_ids": eos_ids,
    "generation": LOSSES[settings.loss_name].generation(settings.loss),
    "data": origin,
  }
  if settings.head is not None:
    resolved["head"] = dataclasses.asdict(lm.head)
  return {"model": settings.model} | sections | {"resolved": resolved}


def _architecture(settings: Settings) -> dict[str, Any]:
  """Fields of the model; a config that leaves them to its checkpoint has it opened."""
  if "num_layers" in settings.model or not settings.init.checkpoint:
    return settings.model
  pretrained = load_pretrained(settings.init.checkpoint)
  config = pretrained.lm.config
  if settings.init.mask_token:
    config, _ = add_mask_token(config, pretrained.params)
  return {**dataclasses.asdict(config), **settings.model}


def _dry_run(config: ConfigDict, target: str, as_json: bool) -> int:
  from sbdjax.cli import dry_run

  where = topology.parse(target)
  # Programs for devices that are not here can be written to the cache but not read back.
  jax.config.update("jax_enable_compilation_cache", False)
  devices = where.devices()
  kept = {k: v for k, v in config.items() if k not in trajectories.SECTIONS}
  training = ConfigDict(kept).copy_and_resolve_references()
  if "collect" in config and not training.data.path:
    training.data.path = "(to be collected)"
  settings = parse_settings(training)
  lm = _build(_architecture(settings), settings)
  loss_fn = _training_loss(settings, lm)
  return dry_run.run(config, settings, lm, loss_fn, where, devices, as_json=as_json)


def main(argv: list[str]) -> int:
  """Runs the verb; returns the exit code."""
  rest, overrides = split_overrides(argv)
  parser = Parser(prog="train", description=__doc__)
  parser.add_argument("--config", required=True, help=CONFIG_HELP)
  parser.add_argument("--workdir", help="the run's directory")
  parser.add_argument(
    "--dry_run",
    metavar="DEVICES",
    help="only say what the run would need of each device: v5p:2x2x2, v6e:8x8, h200:8, ...",
  )
  parser.add_argument("--json", action="store_true", help="with --dry_run: one line of JSON")
  args = parser.parse_args(rest)
  if args.workdir is None and args.dry_run is None:
    raise UsageError("train needs --workdir=DIR (or --dry_run=DEVICES, which writes nothing)")
  found = rounds.read(args.config)
  sections = schema if found is None else lambda c: {**schema(c), **trajectories.SECTIONS}
  config = load_config(args.config, overrides, sections)
  if args.dry_run is not None:
    return _dry_run(config, args.dry_run, args.json)
  if found is None:
    train_from_config(config, args.workdir)
    return 0
  planned = rounds.plan(config, found, pathlib.Path(args.workdir).expanduser(), overrides)
  last = rounds.run(planned, parse_settings, train_from_config)
  print(f"model: {last}")
  return 0
