"""The canvas a diffusion language model fills: a row of masks cut into blocks, one after the other.

Blocks of a block-causal model are counted from position 0, so a prompt that ends inside a block
shares it with the first generated tokens, and the canvas is padded up to whole blocks. Those of a
bidirectional model are counted from the end of the prompt, and the canvas is what was asked for:
the model sees its length. One block as long as the canvas is decoding without blocks.

A `Window` is the block in progress and, for a look-ahead, the blocks behind it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from sbdjax.cache import KVCache
from sbdjax.decode import base
from sbdjax.decode.base import Generation, Limits
from sbdjax.errors import UsageError

ATTENTION = ("full", "block_causal")


@dataclasses.dataclass(frozen=True)
class Canvas:
  """How a row of masks is cut up, and when it is finished.

  Attributes:
    limits: canvas length of each row (`max_tokens`), and the EOS tokens.
    block_size: k.
    attention: "full" or "block_causal".
    mask_id: the mask token.
    early_exit: "never"; "block": a finished block that is EOS throughout ends the row; "eos": one
      that holds an EOS does. What follows is filled with EOS.

  Raises:
    UsageError: a value out of range, or an early exit without EOS tokens.
  """

  limits: Limits
  block_size: int
  attention: str
  mask_id: int
  early_exit: str = "never"

  def __post_init__(self):
    if self.block_size < 1:
      raise UsageError(f"block_size={self.block_size} must be at least 1")
    for name, known in (("attention", ATTENTION), ("early_exit", ("never", "block", "eos"))):
      if getattr(self, name) not in known:
        raise UsageError(f"{name}={getattr(self, name)!r}: choose one of {', '.join(known)}")
    if self.early_exit != "never" and not self.limits.eos_ids:
      raise UsageError("early_exit needs an EOS token; this checkpoint names none")

  @property
  def block_causal(self) -> bool:
    return self.attention == "block_causal"

  def capacity(self, prompt_width: int) -> int:
    """Positions of the longest row."""
    length = prompt_width + self.limits.max_tokens
    return -(-length // self.block_size) * self.block_size if self.block_causal else length

  def first(self, prompt_len_B: jax.Array) -> jax.Array:
    """Where the first block begins."""
    return prompt_len_B // self.block_size * self.block_size if self.block_causal else prompt_len_B

  def end(self, prompt_len_B: jax.Array) -> jax.Array:
    """One past the last position."""
    end_B = prompt_len_B + self.limits.of_rows(prompt_len_B.shape[0])
    return -(-end_B // self.block_size) * self.block_size if self.block_causal else end_B


@flax.struct.dataclass
class CanvasState:
  """What every sampler that fills a canvas carries.

  Attributes:
    out: the tokens; `reveal_step` counts commits, as the published trajectories do.
    cache: keys and values of finished blocks, or of a frozen canvas; None without a cache.
    start_B: int32, first position of the block in progress.
    end_B: int32, one past the canvas.
    opened_B: bool, a forward has looked at the block in progress.
    commits_B: int32, times tokens were revealed so far.
    key_B: one key a row.
  """

  out: Generation
  cache: KVCache | None
  start_B: jax.Array
  end_B: jax.Array
  opened_B: jax.Array
  commits_B: jax.Array
  key_B: jax.Array


class Window(NamedTuple):
  """The positions a forward decides about: N blocks from the one in progress on.

  Attributes:
    position_BxW: int32, the positions.
    inside_BxW: bool, before the end of the canvas.
    generated_BxW: bool, inside and not of the prompt.
    tokens_BxW: int32, what stands there.
    maskable_BxN: int32, positions of each block that do not belong to the prompt.
  """

  position_BxW: jax.Array
  inside_BxW: jax.Array
  generated_BxW: jax.Array
  tokens_BxW: jax.Array
  maskable_BxN: jax.Array


def start(
  canvas: Canvas, prompt_BxP: jax.Array, prompt_len_B: jax.Array, key: jax.Array
) -> CanvasState:
  """Prompts followed by masks; no cache yet."""
  batch, width = prompt_BxP.shape
  out = base.start(prompt_BxP, prompt_len_B, canvas.capacity(width), canvas.mask_id)
  zero_B = jnp.zeros((batch,), jnp.int32)
  return CanvasState(
    out=out.replace(text_end_B=out.length_B),
    cache=None,
    start_B=canvas.first(out.prompt_len_B),
    end_B=canvas.end(out.prompt_len_B),
    opened_B=zero_B.astype(bool),
    commits_B=zero_B,
    key_B=base.row_keys(key, batch),
  )


def window(canvas: Canvas, state: CanvasState, num_blocks: int) -> Window:
  """The `num_blocks` blocks from the one in progress on."""
  k, out = canvas.block_size, state.out
  position_BxW = state.start_B[:, None] + jnp.arange(num_blocks * k)
  inside_BxW = position_BxW < state.end_B[:, None]
  last = out.tokens_BxC.shape[1] - 1
  at_BxW = jnp.minimum(position_BxW, last)
  tokens_BxW = jnp.take_along_axis(out.tokens_BxC, at_BxW, axis=1, mode="clip")
  generated_BxW = inside_BxW & (position_BxW >= out.prompt_len_B[:, None])
  maskable_BxN = jnp.sum(generated_BxW.reshape(-1, num_blocks, k), axis=-1)
  return Window(position_BxW, inside_BxW, generated_BxW, tokens_BxW, maskable_BxN)


def masked(canvas: Canvas, window: Window, tokens: jax.Array) -> jax.Array:
  """bool, the shape of `tokens` [B, W] or [B, D, W]: masks inside the canvas."""
  inside = window.inside_BxW if tokens.ndim == 2 else window.inside_BxW[:, None]
  return (tokens == canvas.mask_id) & inside


def spread(state: CanvasState, window: Window, old_BxC: jax.Array, new_BxW: jax.Array):
  """`old_BxC` with the window's part replaced."""
  offset_BxC = jnp.arange(old_BxC.shape[1]) - state.start_B[:, None]
  width = new_BxW.shape[1]
  inside = (offset_BxC >= 0) & (offset_BxC < width) & _before_end(state, old_BxC)
  placed = jnp.take_along_axis(new_BxW, jnp.clip(offset_BxC, 0, width - 1), axis=1, mode="clip")
  return jnp.where(inside, placed, old_BxC)


def _before_end(state: CanvasState, x_BxC: jax.Array) -> jax.Array:
  return jnp.arange(x_BxC.shape[1]) < state.end_B[:, None]


def commit(
  canvas: Canvas, state: CanvasState, window: Window, *stages_BxW: jax.Array
) -> CanvasState:
  """Writes one version of the window after the other; each that reveals anything is a commit."""
  out = state.out
  tokens_BxW, commits_B = window.tokens_BxW, state.commits_B
  step_BxW = jnp.full_like(tokens_BxW, -1)
  for stage_BxW in stages_BxW:
    new_BxW = masked(canvas, window, tokens_BxW) & (stage_BxW != canvas.mask_id)
    step_BxW = jnp.where(new_BxW, commits_B[:, None], step_BxW)
    tokens_BxW, commits_B = stage_BxW, commits_B + jnp.any(new_BxW, axis=1)
  step_BxC = spread(state, window, jnp.full_like(out.tokens_BxC, -1), step_BxW)
  return state.replace(
    out=out.replace(
      tokens_BxC=spread(state, window, out.tokens_BxC, tokens_BxW),
      reveal_step_BxC=jnp.where(step_BxC >= 0, step_BxC, out.reveal_step_BxC),
    ),
    commits_B=commits_B,
  )


def close_blocks(
  canvas: Canvas, state: CanvasState, window: Window, tokens_BxW: jax.Array, most_B: Any
) -> CanvasState:
  """Leaves the finished blocks at the front of the window, at most `most_B` of them.

  Ends rows whose canvas is full, or at their early exit.

  Args:
    tokens_BxW: what stands in the window now.
    most_B: int32 [B]; 0 for rows that stay where they are.
  """
  k, out = canvas.block_size, state.out
  num_blocks = window.maskable_BxN.shape[1]
  open_BxN = jnp.any(masked(canvas, window, tokens_BxW).reshape(-1, num_blocks, k), axis=-1)
  exists_BxN = window.inside_BxW[:, ::k]
  index_N = jnp.arange(num_blocks)
  closed_BxN = (jnp.cumsum(open_BxN | ~exists_BxN, axis=1) == 0) & (index_N < most_B[:, None])
  exits_BxN = closed_BxN & exits(canvas, window, tokens_BxW, num_blocks)
  exit_B = jnp.any(exits_BxN, axis=1)
  num_closed_B = jnp.where(exit_B, jnp.argmax(exits_BxN, axis=1) + 1, jnp.sum(closed_BxN, axis=1))
  start_B = jnp.minimum(state.start_B + k * num_closed_B, state.end_B)
  index_C = jnp.arange(out.tokens_BxC.shape[1])
  behind_BxC = (index_C >= start_B[:, None]) & (index_C < state.end_B[:, None])
  eos_id = (canvas.limits.eos_ids or (0,))[0]
  tokens_BxC = jnp.where(exit_B[:, None] & behind_BxC, eos_id, out.tokens_BxC)
  start_B = jnp.where(exit_B, state.end_B, start_B)
  return _measured(
    canvas,
    state.replace(
      out=out.replace(tokens_BxC=tokens_BxC, done_B=start_B >= state.end_B),
      start_B=start_B,
      opened_B=state.opened_B & (num_closed_B == 0),
    ),
  )


def exits(canvas: Canvas, window: Window, tokens_BxW: jax.Array, num_blocks: int) -> jax.Array:
  """bool [B, N]: a block with these tokens would end its row."""
  if canvas.early_exit == "never":
    return jnp.zeros((tokens_BxW.shape[0], num_blocks), bool)
  eos_BxW = canvas.limits.is_eos(tokens_BxW)
  split = lambda x: x.reshape(-1, num_blocks, canvas.block_size)
  if canvas.early_exit == "block":
    return jnp.all(split(eos_BxW | ~window.inside_BxW), axis=-1)
  return jnp.any(split(eos_BxW & window.generated_BxW), axis=-1)


def _measured(canvas: Canvas, state: CanvasState) -> CanvasState:
  """Fills in how far the text is final, and where its first EOS is."""
  out = state.out
  index_C = jnp.arange(out.tokens_BxC.shape[1])
  generated = (index_C >= out.prompt_len_B[:, None]) & (index_C < state.end_B[:, None])
  first = lambda is_BxC: jnp.min(jnp.where(is_BxC, index_C, state.end_B[:, None]), axis=1)
  length_B = first(generated & (out.tokens_BxC == canvas.mask_id))
  eos_at_B = first(generated & canvas.limits.is_eos(out.tokens_BxC))
  eos_B = eos_at_B < length_B
  return state.replace(
    out=out.replace(
      length_B=length_B, eos_B=eos_B, text_end_B=jnp.where(eos_B, eos_at_B + 1, length_B)
    )
  )
