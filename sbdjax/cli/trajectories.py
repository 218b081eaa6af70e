"""Collect Jacobi trajectories: --config=FILE.py[:VARIANT] --workdir=DIR [--config.section.field=VALUE ...]

Of a config, the sections `collect` (CollectConfig) and `prompts` (DataConfig) are read. DIR becomes
a dataset (see sbdjax/data/trajectories.py) that `data.source="trajectories"` trains on. Started
again with the same workdir, it goes on with the next shard.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import time
from collections.abc import Iterator, Mapping

import jax
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from sbdjax.cli import record
from sbdjax.cli.common import Parser, load_config, split_overrides, to_dataclass
from sbdjax.data import trajectories
from sbdjax.data.config import DataConfig
from sbdjax.data.sources import load_corpus
from sbdjax.data.trajectories import Example
from sbdjax.decode import trajectories as decoding
from sbdjax.decode.generate import check_context, pad_prompts
from sbdjax.errors import DataError, UsageError
from sbdjax.interop.pretrained import Pretrained, load_pretrained
from sbdjax.lm import LM

DRAFTS = {
  "text": lambda lm: decoding.from_text,
  "vocabulary": lambda lm: decoding.from_vocabulary(lm.config.vocab_size),
}


@dataclasses.dataclass(frozen=True)
class CollectConfig:
  """How trajectories are made; the prompts' documents are a section of their own.

  A document with a prompt of its own gives that prompt, once. Any other gives the first
  `shortest`..`longest` of its tokens, `passes` times, a new random number of them each time.

  Attributes:
    checkpoint: the model that decodes, and that will be trained.
    block_size: n.
    max_tokens: of a text, cut to whole blocks.
    draft: y(0) is drawn from the "text" so far, prompt included, or from the "vocabulary".
    shortest, longest: tokens of an opening; longer prompts are left out.
    passes: openings of each document.
    limit: texts at most; 0: all.
    batch_size: texts decoded together.
    shard_size: texts a file: what an interruption may lose.
    seed: of openings and drafts.
  """

  checkpoint: str
  block_size: int = 16
  max_tokens: int = 208
  draft: str = "text"
  shortest: int = 4
  longest: int = 48
  passes: int = 1
  limit: int = 0
  batch_size: int = 64
  shard_size: int = 512
  seed: int = 0

  def __post_init__(self):
    for name in ("shortest", "passes", "batch_size", "shard_size"):
      if getattr(self, name) < 1:
        raise UsageError(f"collect.{name}={getattr(self, name)} must be at least 1")
    if self.block_size < 2:
      raise UsageError(f"collect.block_size={self.block_size}: a block needs at least 2 tokens")
    if self.max_tokens < self.block_size:
      raise UsageError(
        f"collect.max_tokens={self.max_tokens} has no room for a block of {self.block_size}"
      )
    if self.longest < self.shortest or self.limit < 0:
      raise UsageError("collect needs shortest <= longest and a limit that is not negative")
    if self.draft not in DRAFTS:
      raise UsageError(f"collect.draft={self.draft!r}: choose one of {', '.join(DRAFTS)}")

  @property
  def num_blocks(self) -> int:
    """Whole blocks of a text."""
    return self.max_tokens // self.block_size


SECTIONS = {"collect": CollectConfig, "prompts": DataConfig}


def schema(config: ConfigDict) -> Mapping[str, type]:
  """Section -> dataclass, of what this verb reads."""
  del config
  return SECTIONS


def read_prompts(config: CollectConfig, data: DataConfig, model: Pretrained) -> list[list[int]]:
  """The prompts of the training split, in order.

  Raises:
    DataError: there are none.
  """
  corpus = load_corpus(data, "train", model.tokenizer)
  rng = np.random.default_rng(config.seed)
  given = corpus.prompt_lengths
  found = []
  for turn in range(config.passes):
    for i, (start, length) in enumerate(zip(corpus.starts, corpus.lengths, strict=True)):
      has_prompt = given is not None and given[i] > data.add_bos
      size = int(given[i]) if has_prompt else int(rng.integers(config.shortest, config.longest + 1))
      if (turn and has_prompt) or size > config.longest or size >= length + has_prompt:
        continue
      found.append(corpus.tokens[start : start + size].astype(int).tolist())
      if len(found) == config.limit:
        return found
  if not found:
    raise DataError(
      f"{corpus.origin}: no document gives a prompt of {config.shortest} to {config.longest} "
      "tokens: change collect.shortest and collect.longest"
    )
  return found


def cut(found: decoding.Collected, prompts: list[list[int]], eos_ids: tuple[int, ...]):
  """Yields each row as an Example: nothing behind EOS, each block's points up to the first right one.

  Also yields the forwards the row took, which are what trajectories cost.
  """
  text_BxNxn, points, counts, num_blocks = (np.asarray(x) for x in found)
  size = text_BxNxn.shape[2]
  for b, prompt in enumerate(prompts):
    text = text_BxNxn[b, : int(num_blocks)].reshape(-1)
    ends = np.flatnonzero(np.isin(text, eos_ids))
    text = text[: ends[0] + 1] if len(ends) else text
    ways = []
    for i, at in enumerate(range(0, len(text), size)):
      fixed = text[at : at + size]
      way = points[b, i, : counts[b, i], : len(fixed)]
      right = np.flatnonzero((way == fixed).all(axis=1))
      ways.append(way[: right[0] + 1])
    forwards = int(counts[b, : len(ways)].sum()) - len(ways)
    yield Example(np.concatenate([prompt, text]).astype(np.int32), len(prompt), ways), forwards


class Collector:
  """The model with its compiled loop.

  Attributes:
    compile_seconds: time spent compiling.
  """

  def __init__(self, config: CollectConfig, model: Pretrained, width: int):
    self._config, self._model, self._width = config, model, width
    lm: LM = model.lm
    self._run = jax.jit(
      functools.partial(
        decoding.collect,
        lm,
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        draft=DRAFTS[config.draft](lm),
        eos_ids=tuple(model.generation.eos_ids),
      )
    )
    self._key = jax.random.key(config.seed)
    self._compiled, self.compile_seconds = None, 0.0

  def texts(self, prompts: list[list[int]], first: int) -> Iterator[tuple[Example, int]]:
    """Example and forwards of each prompt; `first` is the number of the first among all."""
    size = min(self._config.batch_size, self._config.shard_size)
    for at in range(0, len(prompts), size):
      some = prompts[at : at + size]
      numbers = first + at + np.minimum(np.arange(size), len(some) - 1)
      padded, lengths = pad_prompts(some, self._width)
      rows = np.minimum(np.arange(size), len(some) - 1)
      keys_B = jax.vmap(jax.random.fold_in, (None, 0))(self._key, numbers)
      args = (self._model.params, padded[rows], lengths[rows], keys_B)
      if self._compiled is None:
        start = time.perf_counter()
        self._compiled = self._run.lower(*args).compile()
        self.compile_seconds = time.perf_counter() - start
      found = jax.device_get(self._compiled(*args))
      yield from cut(found, some, self._model.generation.eos_ids)


def collect(config: CollectConfig, data: DataConfig, workdir: pathlib.Path, console: Console):
  """Everything the verb does, for calls from Python; returns at once where all is there.

  Raises:
    UsageError, DataError, CheckpointError: nothing is written.
  """
  model = load_pretrained(config.checkpoint)
  prompts = read_prompts(config, data, model)
  shape = model.lm.config
  width = max(map(len, prompts))
  check_context(prompts, config.num_blocks * config.block_size, shape.max_seq_len, shape.vocab_size)
  settings = dataclasses.asdict(config) | dict(
    prompts=dataclasses.asdict(data),
    num_blocks=config.num_blocks,
    max_prompt=width,
    vocab_size=shape.vocab_size,
    eos_ids=list(model.generation.eos_ids),
    examples=len(prompts),
    weights_crc32=record.fingerprint(model.params),
  )
  shards = -(-len(prompts) // config.shard_size)
  writer = trajectories.Writer(record.open_workdir(str(workdir)), settings, shards)
  if len(writer.missing) < shards:
    console.print(f"{workdir}: {shards - len(writer.missing)} of {shards} shards are there")
  collector = Collector(config, model, width)
  for number in writer.missing:
    first = number * config.shard_size
    some = prompts[first : first + config.shard_size]
    start, compiled = time.perf_counter(), collector.compile_seconds
    found = list(collector.texts(some, first))
    seconds = time.perf_counter() - start - (collector.compile_seconds - compiled)
    size = writer.write(number, [example for example, _ in found])
    console.print(describe(number, shards, found, seconds, size), highlight=False)
  if not trajectories.is_complete(workdir):
    writer.finish()
  console.print(f"trajectories: {workdir}", highlight=False)


def describe(
  number: int, shards: int, found: list[tuple[Example, int]], seconds: float, size: int
) -> str:
  """One line on a shard: sizes, rates, and the tokens a forward the model decoded at."""
  tokens = sum(len(e.tokens) - e.prompt_len for e, _ in found)
  points = sum(len(way) for e, _ in found for way in e.trajectories)
  blocks = sum(len(e.trajectories) for e, _ in found)
  forwards = sum(n for _, n in found)
  return (
    f"shard {number + 1}/{shards}: {len(found):,} texts, {tokens:,} tokens, {points / blocks:.1f} "
    f"points a block, {tokens / forwards:.2f} tokens a forward, {tokens / seconds:,.0f} tokens/s, "
    f"{size / 1e6:.1f} MB"
  )


def main(argv: list[str]) -> int:
  """Runs the verb; returns the exit code."""
  rest, overrides = split_overrides(argv)
  parser = Parser(prog="trajectories", description=__doc__)
  parser.add_argument("--config", required=True, help="config file, FILE.py or FILE.py:VARIANT")
  parser.add_argument("--workdir", required=True, help="folder the dataset is written to")
  args = parser.parse_args(rest)
  config = load_config(args.config, overrides, schema)
  built = {name: to_dataclass(cls, config.get(name, {}), name) for name, cls in SECTIONS.items()}
  workdir = pathlib.Path(args.workdir).expanduser()
  collect(built["collect"], built["prompts"], workdir, Console(soft_wrap=True))
  return 0
