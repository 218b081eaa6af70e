"""Greedy Jacobi decoding of whole texts, block by block, with every point on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from sbdjax.cache import KVCache
from sbdjax.decode import ar
from sbdjax.decode.jacobi import block_trajectory
from sbdjax.lm import LM

# (key, text int32 [C], its length, n) -> y(0), int32 [n]
Draft = Callable[[jax.Array, jax.Array, jax.Array, int], jax.Array]


def from_text(key: jax.Array, text_C: jax.Array, length: jax.Array, n: int) -> jax.Array:
  """Tokens of the text so far, prompt included, drawn with replacement (the public code's start)."""
  return text_C[jax.random.randint(key, (n,), 0, length)]


def from_vocabulary(vocab_size: int) -> Draft:
  """Any tokens below `vocab_size`, each as likely."""
  return lambda key, text_C, length, n: jax.random.randint(key, (n,), 0, vocab_size)


class Collected(NamedTuple):
  """Texts and how their blocks came about.

  Attributes:
    text_BxNxn: int32, the fixed points; garbage behind an EOS, and behind `num_blocks`.
    points_BxNxIxn: int32, I = n + 1: y(0), y(1), ...; see `jacobi.Trajectory`.
    num_points_BxN: int32, how many of them there are.
    num_blocks: int32, blocks that were decoded before every row had ended.
  """

  text_BxNxn: jax.Array
  points_BxNxIxn: jax.Array
  num_points_BxN: jax.Array
  num_blocks: jax.Array


class _Carry(NamedTuple):
  """Loop state: the next block, text and its length, the cache, rows that ended, what is found."""

  block: jax.Array
  tokens_BxC: jax.Array
  length_B: jax.Array
  cache: KVCache
  ended_B: jax.Array
  found: Collected


def collect(
  lm: LM,
  params,
  prompt_BxP: jax.Array,
  prompt_len_B: jax.Array,
  key_B: jax.Array,
  *,
  block_size: int,
  num_blocks: int,
  draft: Draft,
  eos_ids: tuple[int, ...],
) -> Collected:
  """Decodes up to `num_blocks` blocks behind each right-padded prompt.

  Stops when every row has an EOS; until then a row that has one goes on, to be cut by the caller.
  The start of a block depends on its row's key and number alone.
  """
  batch, width = prompt_BxP.shape
  capacity = width + num_blocks * block_size
  shape = (batch, num_blocks, block_size + 1, block_size)
  rows, column_n = jnp.arange(batch)[:, None], jnp.arange(block_size)

  def step(carry: _Carry) -> _Carry:
    i, tokens, length_B, cache, ended_B, found = carry
    keys_B = jax.vmap(jax.random.fold_in, (0, None))(key_B, i)
    start_Bxn = jax.vmap(draft, (0, 0, 0, None))(keys_B, tokens, length_B, block_size)
    last_B = jnp.take_along_axis(tokens, length_B[:, None] - 1, axis=1)[:, 0]
    way = block_trajectory(lm, params, cache, last_B, start_Bxn)
    fixed_Bxn = way.points_BxIxn[:, -1]
    is_eos_Bxn = jnp.isin(fixed_Bxn, jnp.asarray(eos_ids or (-1,), jnp.int32))
    return _Carry(
      i + 1,
      tokens.at[rows, length_B[:, None] + column_n].set(fixed_Bxn, mode="drop"),
      length_B + block_size,
      way.cache,
      ended_B | jnp.any(is_eos_Bxn, axis=1),
      Collected(
        found.text_BxNxn.at[:, i].set(fixed_Bxn),
        found.points_BxNxIxn.at[:, i].set(way.points_BxIxn),
        found.num_points_BxN.at[:, i].set(way.num_points_B),
        i + 1,
      ),
    )

  carry = _Carry(
    jnp.int32(0),
    jnp.pad(prompt_BxP.astype(jnp.int32), ((0, 0), (0, capacity - width))),
    prompt_len_B.astype(jnp.int32),
    ar.prefill(lm, params, prompt_BxP, prompt_len_B - 1, capacity),
    jnp.zeros((batch,), bool),
    Collected(
      jnp.zeros((*shape[:2], block_size), jnp.int32),
      jnp.zeros(shape, jnp.int32),
      jnp.zeros(shape[:2], jnp.int32),
      jnp.int32(0),
    ),
  )
  going = lambda c: (c.block < num_blocks) & ~jnp.all(c.ended_B)
  return jax.lax.while_loop(going, step, carry).found
