"""Stop strings that differ from row to row: one automaton per set of strings, and each row's number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sbdjax import pytree
from sbdjax.decode import sizes
from sbdjax.decode.stops import NOTHING, STOPPED, Stops, read_through

# Sets that one table holds; it takes 2 bytes a set, token and state.
MOST_SETS = 16


@pytree.dataclass
class StopSets(pytree.Struct):
  """`Stops` of several sets of strings, for one vocabulary. Equal are only those that are the same object.

  Attributes:
    next_KxVxS: int16, of each set the state after each token, from each state.
    bos_id: int32, the token after which a text drops its leading space (-1: there is none).
    after_bos_K: int32, of each set the state of a text that begins after it.
    set_B: int32, the set of each row; None: not said yet, see `of_rows`.
  """

  next_KxVxS: Any
  bos_id: Any
  after_bos_K: Any
  set_B: Any = None

  __eq__ = object.__eq__
  __hash__ = object.__hash__

  def of_rows(self, set_B: Any) -> StopSets:
    """These sets, for rows of the given numbers."""
    return self.replace(set_B=set_B)

  def start(self, last_token_B: jax.Array) -> jax.Array:
    """As `Stops.start`."""
    begun_B = jnp.asarray(self.after_bos_K)[self.set_B]
    return jnp.where(last_token_B == self.bos_id, begun_B, NOTHING).astype(jnp.int32)

  def after(self, state_B: jax.Array, token_BxT: jax.Array, read_BxT: jax.Array) -> jax.Array:
    """As `Stops.after`."""
    next_BxTxS = self.next_KxVxS.at[self.set_B[:, None], token_BxT].get(mode="clip")
    return read_through(next_BxTxS, state_B, read_BxT)


def stacked(sets: Sequence[Stops | None]) -> StopSets:
  """One table of all `sets`, in order, of which at least one is not None (None: no strings).

  The number of sets is rounded up, so that tables of about as many share programs.
  """
  given = [stops for stops in sets if stops is not None]
  states = max(stops.next_VxS.shape[1] for stops in given)
  vocabulary = given[0].next_VxS.shape[0]
  count = sizes.round_up(len(sets), 1, MOST_SETS)
  table_KxVxS = np.full((count, vocabulary, states), STOPPED, np.int16)
  table_KxVxS[:, :, NOTHING] = NOTHING  # without strings nothing is ever read
  after_bos_K = np.full((count,), NOTHING, np.int32)
  for k, stops in enumerate(sets):
    if stops is not None:
      table_KxVxS[k, :, : stops.next_VxS.shape[1]] = stops.next_VxS
      after_bos_K[k] = stops.after_bos
  return StopSets(jnp.asarray(table_KxVxS), given[0].bos_id, after_bos_K)
