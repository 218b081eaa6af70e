"""What `finetune` knows of each method, and how it scales a run to the data and the devices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

# Between these numbers of parameters the learning rate goes down by a power law.
_SMALL, _LARGE = 260e3, 8e9
# Updates that a run should have at least, where the data has enough rows; rows of an update.
_UPDATES, _MOST_ROWS = 200, 64
_SHORTEST_ROW = 32


@dataclasses.dataclass(frozen=True)
class Recipe:
  """One method.

  Attributes:
    title: what it is, in a few words.
    loss: the section `loss` of the config.
    decoder: how a model that was trained so is decoded: the flags of `generate`, as NAME=VALUE words.
    rates: peak learning rate of a model of 260K parameters and of one of 8B.
    needs_mask: the model needs a mask token.
    attention: kinds of models that it goes on from (`GenerationDefaults.attention`).
    model: the section `model`, beside the mask token.
    data: fields of the section `data`.
    noise: the data are the model's own Jacobi trajectories, and this is the section `data.noise`.
    block_size: tokens that a document's length and a row's are multiples of.
    tokens: of training below which `finetune` warns that parallel decoding will be poor; 0: not
      measured.
  """

  title: str
  loss: Mapping[str, Any]
  decoder: str
  rates: tuple[float, float]
  needs_mask: bool = True
  attention: tuple[str, ...] = ("causal",)
  model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  data: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  noise: Mapping[str, Any] | None = None
  block_size: int = 1
  tokens: int = 0


BLOCK = 16  # of Jacobi trajectories
RECIPES = {
  "sbd": Recipe(
    title="Set Block Decoding: several tokens per forward, and next tokens as before",
    loss=dict(name="sbd", block_size_min=2, block_size_max=16),
    decoder="name=sbd block_size=8 gamma=0.1",
    rates=(3e-3, 3e-4),
    # Figure "budgets" of experiments/one_task, whose longest run sees so many.
    tokens=2_000_000,
  ),
  "sbd_adapter": Recipe(
    title="a gated adapter that drafts: the model's own text, in fewer forwards",
    loss=dict(name="sbd", block_size_min=4, block_size_max=4, full_mask_fraction=1.0),
    decoder="name=sbd_verified block_size=4",
    rates=(2e-3, 1e-3),
    model=dict(adapter=dict(rank=16, alpha=32.0)),
  ),
  "jacobi": Recipe(
    title="Jacobi Forcing: next tokens guessed in parallel, on trajectories of the model itself",
    loss=dict(name="jacobi", mask="noisy", ar_weight=1.0, normalisation="tokens"),
    decoder=f"name=jacobi block_size={BLOCK}",
    rates=(3e-3, 1e-5),
    needs_mask=False,
    noise=dict(schedule="linear", window=16, ratio="count", shift=True, blocks="all"),
  ),
  "block_diffusion": Recipe(
    title="a diffusion model in blocks, whose tokens are filled in any order",
    loss=dict(name="block_diffusion", block_size=4),
    decoder="name=dynamic",
    rates=(5e-3, 3e-4),
    attention=("causal", "block_causal"),
    data=dict(multiple=4),
    block_size=4,
  ),
  "ntp": Recipe(
    title="next-token prediction, the plain fine-tuning",
    loss=dict(name="ntp"),
    decoder="name=ar",
    rates=(3e-3, 2e-5),
    needs_mask=False,
  ),
}


class Request(NamedTuple):
  """What a user asks for: the flags of the verb."""

  model: str
  data: list[str]
  mix: str | None
  method: str
  self_distill: bool
  chat: bool
  texts: int
  max_tokens: int
  epochs: float


class Facts(NamedTuple):
  """What a run is scaled to.

  Attributes:
    params: of the model.
    context: tokens the model takes.
    tokens: of the training documents, in all.
    long_document: the length that one document in twenty exceeds, in tokens.
    devices: that share a batch.
    accelerated: they are no CPUs.
  """

  params: int
  context: int
  tokens: int
  long_document: int
  devices: int
  accelerated: bool


class Scale(NamedTuple):
  """Sizes of a run.

  Attributes:
    seq_len: tokens of a row.
    batch_size: rows of an update.
    steps: updates.
    warmup: updates until the learning rate is at its peak.
  """

  seq_len: int
  batch_size: int
  steps: int
  warmup: int


def learning_rate(recipe: Recipe, params: int) -> float:
  """The peak: between those of `recipe.rates` by a power law in the number of parameters."""
  small, large = recipe.rates
  share = math.log(max(params, 1) / _SMALL) / math.log(_LARGE / _SMALL)
  rate = small * (large / small) ** min(max(share, 0.0), 1.0)
  return float(f"{rate:.2g}")


class Given(NamedTuple):
  """Sizes that the user sets; None: chosen here."""

  seq_len: int | None = None
  batch_size: int | None = None
  steps: int | None = None


NOTHING_GIVEN = Given()


def scale(
  recipe: Recipe,
  facts: Facts,
  epochs: float,
  given: Given = NOTHING_GIVEN,
  rows_of: Callable[[int], float] | None = None,
) -> Scale:
  """Rows as long as nearly all documents, batches that leave enough updates, and `epochs` passes.

  A row is a power of two (or the whole context) and at most 512 tokens on CPUs, 2048 elsewhere.

  Args:
    rows_of: tokens of a row -> how many rows are one pass; None: rows without padding.
  """
  cap = min(facts.context, 2048 if facts.accelerated else 512)
  seq_len = min(cap, max(_SHORTEST_ROW, _power_above(facts.long_document)))
  seq_len = given.seq_len or seq_len - seq_len % recipe.block_size
  rows = max(1, math.ceil(facts.tokens / seq_len if rows_of is None else rows_of(seq_len)))
  return of_rows(rows, seq_len, facts, epochs, given)


def of_rows(
  rows: int, seq_len: int, facts: Facts, epochs: float, given: Given = NOTHING_GIVEN
) -> Scale:
  """As `scale`, for `rows` rows of a given length."""
  wanted = _power_below(int(rows * epochs / _UPDATES))
  most = _MOST_ROWS if facts.accelerated else 8
  batch_size = given.batch_size or facts.devices * max(1, min(wanted, most) // facts.devices)
  steps = given.steps or max(2, round(rows * epochs / batch_size))
  return Scale(seq_len, batch_size, steps, min(100, steps // 10))


def _power_above(number: int) -> int:
  return 1 << max(0, math.ceil(math.log2(max(number, 1))))


def _power_below(number: int) -> int:
  return 1 << int(math.log2(number)) if number > 1 else 1
