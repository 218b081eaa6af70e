"""The kinds of cache of a diffusion model, and how its forwards are made.

    none    the whole canvas is run each time
    block   exact: finished blocks of a block-causal model are cached; only the window is run
    prefix  everything before the block is frozen when the block begins (one forward over the whole
            canvas); block and suffix are run each time (Fast-dLLM)
    dual    what follows the block is frozen too; only the block is run (Fast-dLLM)

`block` gives the tokens of `none`; `prefix` and `dual` are approximations, and "lossless" beside
them means equal to static decoding with the same cache.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sbdjax import pytree
from sbdjax.decode.diffusion.blocks import BlockGrid
from sbdjax.decode.diffusion.caches.exact import ExactNetwork
from sbdjax.decode.diffusion.caches.frozen import FrozenNetwork
from sbdjax.decode.diffusion.caches.whole import WholeNetwork
from sbdjax.decode.diffusion.forward import Network
from sbdjax.decode.method import Defaults, Part
from sbdjax.errors import UsageError
from sbdjax.lm import LM


class DiffusionCache(Part):
  """Base of the kinds of cache."""

  kind: ClassVar[str] = "cache"

  def __call__(self, lm: LM, grid: BlockGrid, **settings: Any) -> Network:
    """The forwards of a model over such a cache.

    Args:
      lm: the model.
      grid: where blocks are.
      **settings: the other attributes of `Network`.

    Raises:
      UsageError: the cache does not fit the attention, or a look-ahead.
    """
    raise NotImplementedError

  def whole_canvas(self, block_causal: bool) -> bool:
    """Whether forwards run the whole canvas; see `Method.whole_canvas`."""
    del block_causal
    return True


@pytree.dataclass
class AutoCache(DiffusionCache):
  """`BlockCache` where the attention allows it, else `NoCache`."""

  def __call__(self, lm: LM, grid: BlockGrid, **settings: Any) -> Network:
    cache = BlockCache() if grid.block_causal else NoCache()
    return cache(lm, grid, **settings)

  def whole_canvas(self, block_causal: bool) -> bool:
    return not block_causal


@pytree.dataclass
class NoCache(DiffusionCache):
  """Every forward runs the whole canvas."""

  def __call__(self, lm: LM, grid: BlockGrid, **settings: Any) -> Network:
    return WholeNetwork(lm, grid, **settings)


@pytree.dataclass
class BlockCache(DiffusionCache):
  """Exact: finished blocks of a block-causal model."""

  def __call__(self, lm: LM, grid: BlockGrid, **settings: Any) -> Network:
    if not grid.block_causal:
      raise UsageError("cache=block does not fit attention=full: use none or prefix or dual")
    return ExactNetwork(lm, grid, **settings)

  def whole_canvas(self, block_causal: bool) -> bool:
    return False


@pytree.dataclass
class PrefixCache(DiffusionCache):
  """Everything before the block, frozen when the block begins (Fast-dLLM)."""

  def __call__(self, lm: LM, grid: BlockGrid, **settings: Any) -> Network:
    return _frozen("prefix", FrozenNetwork(lm, grid, **settings, suffix=False))


@pytree.dataclass
class DualCache(DiffusionCache):
  """Everything but the block, frozen when the block begins (Fast-dLLM)."""

  def __call__(self, lm: LM, grid: BlockGrid, **settings: Any) -> Network:
    return _frozen("dual", FrozenNetwork(lm, grid, **settings, suffix=True))


def _frozen(name: str, network: FrozenNetwork) -> FrozenNetwork:
  """`network`, if its window and attention fit a frozen cache."""
  if network.grid.block_causal:
    raise UsageError(f"cache={name} does not fit attention=block_causal: use none or block")
  if network.num_blocks > 1:
    raise UsageError(
      f"eager acceptance looks at later blocks, which cache={name} has frozen: use "
      "cache=none (or eager=false)"
    )
  return network


@pytree.dataclass
class Forwarding(Part):
  """How forwards are made.

  Attributes:
    cache: what a forward need not run again.
    shifted: position i is predicted from the output at i - 1 (Dream); None: the checkpoint says.
    cfg_scale: s of classifier-free guidance with the prompt masked (LLaDA); 0: none.

  Raises:
    UsageError: a negative scale.
  """

  cache: DiffusionCache = AutoCache()
  shifted: bool | None = pytree.static(default=None)
  cfg_scale: float = pytree.static(default=0.0)

  def __post_init__(self) -> None:
    pytree.check(self.cfg_scale >= 0, f"cfg_scale={self.cfg_scale} must not be negative")

  def for_model(self, defaults: Defaults) -> Forwarding:
    """These settings with what was left to the checkpoint filled in."""
    return self.replace(shifted=defaults.shifted) if self.shifted is None else self

  def network(self, lm: LM, grid: BlockGrid, **settings: Any) -> Network:
    """The forwards of a model.

    Args:
      lm: the model.
      grid: where blocks are.
      **settings: of a look-ahead: `num_blocks`, `draft_mode` and `kept` of `Network`.

    Raises:
      UsageError: the cache does not fit the attention, or a look-ahead.
    """
    shifted = bool(self.shifted)
    return self.cache(lm, grid, shifted=shifted, cfg_scale=self.cfg_scale, **settings)
