"""Gated adapters: low-rank updates that act on the tokens of open blocks, and on no other token.

"An adapter drafts, the model verifies." The weights W of a projection stay what they are, and a
token x of an open block gets

    y = W x + (alpha / r) B A x,        A: D_in -> r, B: r -> D_out, B = 0 at the start,

while every other token gets W x by the same operations as without an adapter. So the causal half
of a Set Block Decoding model is the model that was adapted, whatever the adapter has learned, and
verified decoding gives that model's text. In an open block the mask token enters by an embedding of
the adapter's own, so the tables stay what they are as well.

This is the gated LoRA of Samragh et al. 2025 ("Your LLM Knows the Future"), who gate by token in
the network, train on masks after every place of a text, and add a sampler head on top; here the
gate is static, by the mask rule of a forward (`masks.num_open`), so a forward without open tokens
is the program of the bare model, and the tokens of a block see each other in both directions. BiTA
(Lin et al. 2024) and PaSS (Monea et al. 2023) leave the weights alone too, and train embeddings
only: prompts and masks of BiTA, look-ahead tokens of PaSS.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import traverse_util

from sbdjax.errors import UsageError
from sbdjax.nn.linear import linear

PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down")
# The embedding of the mask token in open blocks.
MASK_EMBEDDING = "mask_embedding"
_LARGEST_RANK = 1 << 16
# Small, and trained: not in the dtype of the model, whose half precision would lose their updates.
DTYPE = "float32"

_LEAF = re.compile(rf"(^|[/.])([a-z]+_adapter_[ab]|{MASK_EMBEDDING})$")
# Of parameter paths, as `optim.frozen` takes it: finds every leaf that is not the adapter's.
BASE = rf"^(?!(.*/)?([a-z]+_adapter_[ab]|{MASK_EMBEDDING})$)"


@dataclasses.dataclass(frozen=True)
class AdapterConfig:
  """The low-rank updates of a model.

  Attributes:
    rank: of the low-rank updates, r.
    alpha: the updates are multiplied by alpha / r.
    projections: which have one, of `PROJECTIONS`; empty: all that the model has.
  """

  rank: int = 16
  alpha: float = 16.0
  projections: tuple[str, ...] = ()

  def __post_init__(self) -> None:
    if not 1 <= self.rank <= _LARGEST_RANK:
      raise UsageError(
        f"model.adapter.rank={self.rank} must be at least 1, at most {_LARGEST_RANK}"
      )
    if not 0 < self.alpha < float("inf"):
      raise UsageError(f"model.adapter.alpha={self.alpha} must be positive")
    object.__setattr__(self, "projections", tuple(self.projections))
    if len(set(self.projections)) < len(self.projections):
      raise UsageError(f"model.adapter.projections={self.projections} names one twice")

  def of_model(self, gated: bool) -> AdapterConfig:
    """This adapter, of a model whose MLP has a gate or none.

    Raises:
      UsageError: a projection that the model lacks.
    """
    has = tuple(name for name in PROJECTIONS if gated or name != "gate")
    for name in self.projections:
      if name not in has:
        raise UsageError(
          f"model.adapter.projections names {name!r}, which this model does not have: choose from "
          f"{', '.join(has)}"
        )
    return dataclasses.replace(self, projections=self.projections or has)


def adapted(
  module: nn.Module,
  config: AdapterConfig | None,
  name: str,
  x_BxTxI: jax.Array,
  y_BxTxO: jax.Array,
  num_open: int,
) -> jax.Array:
  """`y` = `x` W of projection `name`, with the adapter's product added to the last `num_open` tokens.

  Args:
    module: holds the parameters `NAME_adapter_a` [I, r] and `NAME_adapter_b` [r, O].
    config: None: there is no adapter.
    num_open: tokens of open blocks, which come last; 0: `y` is returned.
  """
  if config is None or name not in config.projections:
    return y_BxTxO
  inputs, outputs = x_BxTxI.shape[-1], y_BxTxO.shape[-1]
  normal, zeros = nn.initializers.normal(stddev=inputs**-0.5), nn.initializers.zeros
  a_IxR = module.param(f"{name}_adapter_a", normal, (inputs, config.rank), DTYPE)
  b_RxO = module.param(f"{name}_adapter_b", zeros, (config.rank, outputs), DTYPE)
  if not num_open:
    return y_BxTxO
  first, dtype = x_BxTxI.shape[1] - num_open, x_BxTxI.dtype
  inner = linear(x_BxTxI[:, first:], a_IxR.astype(dtype))
  update = linear(inner, b_RxO.astype(dtype)) * (config.alpha / config.rank)
  return on_open(y_BxTxO, y_BxTxO[:, first:] + update.astype(y_BxTxO.dtype))


def on_open(x_BxTxD: jax.Array, open_BxNxD: jax.Array) -> jax.Array:
  """`x` whose last N tokens are `open`; the others are not computed with, so they keep their bits."""
  first = x_BxTxD.shape[1] - open_BxNxD.shape[1]
  return open_BxNxD if not first else jnp.concatenate([x_BxTxD[:, :first], open_BxNxD], axis=1)


def is_leaf(name: str) -> bool:
  """Whether the parameter of this path, joined by "/" or ".", belongs to an adapter."""
  return _LEAF.search(name) is not None


def split(params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
  """The parameters of the base, and those of its adapter (empty where there is none)."""
  flat = traverse_util.flatten_dict(dict(params), sep="/")
  ours = {name: x for name, x in flat.items() if is_leaf(name)}
  base = {name: x for name, x in flat.items() if name not in ours}
  return traverse_util.unflatten_dict(base, sep="/"), traverse_util.unflatten_dict(ours, sep="/")


def join(base: Mapping[str, Any], adapter: Mapping[str, Any]) -> dict[str, Any]:
  """The parameters of a base and its adapter in one tree: what `split` takes apart."""
  parts = (traverse_util.flatten_dict(dict(x), sep="/") for x in (base, adapter))
  return traverse_util.unflatten_dict({k: v for part in parts for k, v in part.items()}, sep="/")
