"""The sampler interface and the state every sampler shows.

A sampler is three pure functions with its settings in their closures. `decode` drives it on the
device; the very same `step` drives the streaming loop of the live view. Every sampler passes one
contract test (tests/decode/test_contract.py): while_loop equals the Python loop; a row alone
equals its row in a batch; finished rows never change; no mask token is ever in the output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from sbdjax.errors import UsageError


class Sampler(NamedTuple):
  """A decoding method.

  Attributes:
    init: (params, prompt_BxP, prompt_len_B, key) -> state. Prompts are right-padded; `key` is one
      typed key, or one a row ([B]).
    step: (params, state) -> state: one network forward for every unfinished row.
    done: state -> bool [B].
  """

  init: Callable[..., Any]
  step: Callable[[Any, Any], Any]
  done: Callable[[Any], jax.Array]


def decode(sampler: Sampler, params, *args):
  """Runs `sampler` to the end inside one `lax.while_loop`; returns its final state."""
  return jax.lax.while_loop(
    lambda state: ~jnp.all(sampler.done(state)),
    partial(sampler.step, params),
    sampler.init(params, *args),
  )


@dataclasses.dataclass(frozen=True)
class Limits:
  """When a row ends.

  Attributes:
    max_tokens: largest number of generated tokens of any row (static: it sizes the buffers).
    eos_ids: tokens that end a row; they are part of its output. () for none.
    max_tokens_B: int32 [B] or a number, a smaller limit for each row; None: `max_tokens` for all.
  """

  max_tokens: int
  eos_ids: tuple[int, ...] = ()
  max_tokens_B: Any = None

  def __post_init__(self):
    if self.max_tokens < 1:
      raise UsageError(f"max_tokens={self.max_tokens}: at least one token must be asked for")

  def of_rows(self, batch: int) -> jax.Array:
    """int32 [B]: the limit of each row."""
    if self.max_tokens_B is None:
      return jnp.full((batch,), self.max_tokens, jnp.int32)
    limit = jnp.minimum(jnp.asarray(self.max_tokens_B, jnp.int32), self.max_tokens)
    return jnp.broadcast_to(limit, (batch,))

  def is_eos(self, tokens: jax.Array) -> jax.Array:
    """bool, the shape of `tokens`."""
    return jnp.isin(tokens, jnp.asarray(self.eos_ids or (-1,), jnp.int32))


@flax.struct.dataclass
class Generation:
  """What every sampler's state carries as `state.out`.

  Attributes:
    tokens_BxC: int32, prompt then generated tokens; beyond `length_B` it is scratch.
    prompt_len_B: int32, tokens of the prompt.
    length_B: int32, prompt plus generated tokens that are final (EOS included).
    reveal_step_BxC: int32, the 0-based forward of its row that revealed a token; -1 elsewhere.
    nfe_B: int32, network forwards of the row until it was finished, without its prefill.
    prefill_nfe_B: int32, forwards spent on the prompt.
    query_tokens_B: int32, the widths of the `nfe_B` forwards summed, every branch of a batch or
      tree of drafts included: what a forward costs once decoding is no longer memory-bound.
    drafted_B: int32, tokens that drafts proposed, in forwards that verified them.
    accepted_B: int32, how many of them became text.
    done_B: bool, the row is finished.
    eos_B: bool, the row ended by an EOS token (else by its length limit).
    text_end_B: int32, one past the first EOS, for samplers that fill a whole canvas and therefore
      have tokens behind it; None: the text ends at `length_B`.
    causal_passes_B: int32, passes of the causal blocks of a self-speculative model, whose `nfe_B`
      are passes of its trunk; None for every other model.
    blocks: blocks of (trunk, causal blocks) there.
  """

  tokens_BxC: jax.Array
  prompt_len_B: jax.Array
  length_B: jax.Array
  reveal_step_BxC: jax.Array
  nfe_B: jax.Array
  prefill_nfe_B: jax.Array
  query_tokens_B: jax.Array
  drafted_B: jax.Array
  accepted_B: jax.Array
  done_B: jax.Array
  eos_B: jax.Array
  text_end_B: jax.Array | None = None
  causal_passes_B: jax.Array | None = None
  blocks: tuple[int, int] | None = flax.struct.field(pytree_node=False, default=None)


def start(prompt_BxP: jax.Array, prompt_len_B: jax.Array, capacity: int, fill: int) -> Generation:
  """A Generation that holds the prompts, `fill` after them, and nothing generated yet."""
  batch, width = prompt_BxP.shape
  index_C = jnp.arange(capacity)
  tokens = jnp.pad(prompt_BxP.astype(jnp.int32), ((0, 0), (0, capacity - width)))
  tokens = jnp.where(index_C < prompt_len_B[:, None], tokens, fill)
  zero_B = jnp.zeros((batch,), jnp.int32)
  return Generation(
    tokens_BxC=tokens,
    prompt_len_B=prompt_len_B.astype(jnp.int32),
    length_B=prompt_len_B.astype(jnp.int32),
    reveal_step_BxC=jnp.full((batch, capacity), -1, jnp.int32),
    nfe_B=zero_B,
    prefill_nfe_B=zero_B,
    query_tokens_B=zero_B,
    drafted_B=zero_B,
    accepted_B=zero_B,
    done_B=zero_B.astype(bool),
    eos_B=zero_B.astype(bool),
  )


def row_keys(key: jax.Array, batch: int) -> jax.Array:
  """One key a row [B]: `key` itself if it is one a row, else `key` folded with the row index."""
  if key.ndim == 1:
    return key
  return jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(batch))


def keep_done(done_B: jax.Array, old, new):
  """`old` for finished rows, `new` for the others; every leaf has B as its leading axis."""

  def pick(a, b):
    return jnp.where(done_B.reshape(-1, *([1] * (b.ndim - 1))), a, b)

  return jax.tree.map(pick, old, new)
