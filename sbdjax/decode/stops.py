"""Stop strings: a row ends with the token that completes one of them.

The strings become one automaton over the bytes of text (Aho and Corasick 1975), and every token a
map from its states to its states: what reading the token's bytes does. So a string that begins in
one token and ends in another is found where it ends, on the device, and nothing after it is run.
Maps are composed in parallel over the tokens of a forward or of a canvas.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sbdjax import pytree
from sbdjax.decode import sizes
from sbdjax.errors import UsageError

# States of every automaton: nothing of a string has been read; one has been read whole.
NOTHING, STOPPED = 0, 1

# The table of a large vocabulary takes 2 bytes per token and state.
_FEWEST_STATES, _MOST_STATES = 8, 1024


@pytree.dataclass
class Stops(pytree.Struct):
  """Stop strings, for one vocabulary. Equal are only those that are the same object.

  Attributes:
    next_VxS: int16, the state after each token, from each state.
    bos_id: int32, the token after which a text drops its leading space (-1: there is none).
    after_bos: int32, the state of a text that begins after it.
  """

  next_VxS: Any
  bos_id: Any
  after_bos: Any

  __eq__ = object.__eq__
  __hash__ = object.__hash__

  def start(self, last_token_B: jax.Array) -> jax.Array:
    """int32 [B]: the state before a text that follows these tokens."""
    return jnp.where(last_token_B == self.bos_id, self.after_bos, NOTHING).astype(jnp.int32)

  def after(self, state_B: jax.Array, token_BxT: jax.Array, read_BxT: jax.Array) -> jax.Array:
    """int32 [B, T]: the state after each token.

    Args:
      state_B: int32, the state before the first.
      token_BxT: int32.
      read_BxT: bool, tokens that belong to the text; others change nothing.
    """
    return read_through(self.next_VxS.at[token_BxT].get(mode="clip"), state_B, read_BxT)


def read_through(next_BxTxS: jax.Array, state_B: jax.Array, read_BxT: jax.Array) -> jax.Array:
  """int32 [B, T]: the state after each token, of which `next_BxTxS` says what it does to each state.

  Args:
    state_B: int32, the state before the first.
    read_BxT: bool, tokens that belong to the text; others change nothing.
  """
  same_S = jnp.arange(next_BxTxS.shape[2], dtype=next_BxTxS.dtype)
  next_BxTxS = jnp.where(read_BxT[..., None], next_BxTxS, same_S)
  through_BxTxS = jax.lax.associative_scan(_composed, next_BxTxS, axis=1)
  found = jnp.take_along_axis(through_BxTxS, state_B[:, None, None], axis=2)[..., 0]
  return found.astype(jnp.int32)


def _composed(first: jax.Array, then: jax.Array) -> jax.Array:
  return jnp.take_along_axis(then, first.astype(jnp.int32), axis=-1, mode="clip")


def stops_for(
  strings: Sequence[str], pieces: Sequence[bytes], dropped_after: int | None = None
) -> Stops:
  """The automaton of `strings`; programs are shared by those of about as many bytes.

  Args:
    strings: what ends a text, each of at least one character.
    pieces: the bytes that each token adds to a text, b"" for special ones.
    dropped_after: a token after which a text that begins there drops a leading space.

  Raises:
    UsageError: no strings, an empty one, or too many bytes.
  """
  if not strings or not all(strings):
    raise UsageError("a stop string is empty: give at least one character")
  delta_Sx256 = automaton([string.encode() for string in strings])
  table_VxS = _after_pieces(delta_Sx256, pieces)
  after_bos = NOTHING
  if dropped_after is not None:
    bare = [piece.removeprefix(b" ") for piece in pieces]
    after_bos = table_VxS.shape[1]
    begun_V = _after_pieces(delta_Sx256, bare)[:, NOTHING]
    table_VxS = np.concatenate([table_VxS, begun_V[:, None]], axis=1)
  count = table_VxS.shape[1]
  if count > _MOST_STATES:
    raise UsageError(
      f"stop strings of about {count} bytes in all; at most {_MOST_STATES} are supported"
    )
  more = sizes.round_up(count, _FEWEST_STATES, _MOST_STATES) - count
  table_VxS = np.pad(table_VxS, ((0, 0), (0, more)), constant_values=STOPPED)
  bos_id = -1 if dropped_after is None else dropped_after
  return Stops(jnp.asarray(table_VxS, jnp.int16), np.int32(bos_id), np.int32(after_bos))


def automaton(strings: Sequence[bytes]) -> np.ndarray:
  """int32 [S, 256]: the state after a byte, from each state; `STOPPED` is never left.

  A state is the longest end of what was read that a string begins with.
  """
  children: list[dict[int, int]] = [{}, {}]
  for string in strings:
    node = NOTHING
    for byte in string[:-1]:
      if byte not in children[node]:
        children[node][byte] = len(children)
        children.append({})
      node = children[node][byte]
      if node == STOPPED:  # a shorter one ends first
        break
    else:
      children[node][string[-1]] = STOPPED
  delta = np.zeros((len(children), 256), np.int32)
  delta[STOPPED] = STOPPED
  queue = collections.deque([(NOTHING, NOTHING)])
  while queue:  # by depth: the row of a shorter end is complete
    node, shorter = queue.popleft()
    delta[node] = delta[shorter]
    for byte, child in children[node].items():
      end = NOTHING if node == NOTHING else delta[shorter, byte]
      stops = STOPPED in (child, end)
      delta[node, byte] = STOPPED if stops else child
      if not stops:
        queue.append((child, end))
  return delta


def _after_pieces(delta_Sx256: np.ndarray, pieces: Sequence[bytes]) -> np.ndarray:
  """int32 [V, S]: the state after the bytes of each piece, from each state."""
  count = len(delta_Sx256)
  length_V = np.fromiter(map(len, pieces), int, len(pieces))
  bytes_N = np.frombuffer(b"".join(pieces), np.uint8)
  first_V = np.cumsum(length_V) - length_V
  state_VxS = np.tile(np.arange(count, dtype=np.int32), (len(pieces), 1))
  for at in range(int(length_V.max(initial=0))):
    rows = np.flatnonzero(length_V > at)
    state_VxS[rows] = delta_Sx256[state_VxS[rows], bytes_N[first_V[rows] + at][:, None]]
  return state_VxS


def before_stop(text: str, strings: Sequence[str]) -> str:
  """`text` up to the string that is complete first in it; of those that end there, the longest."""
  found = [(text.find(s) + len(s), text.find(s)) for s in strings if s in text]
  return text[: min(found)[1]] if found else text
