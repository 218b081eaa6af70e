"""Parameters prepared once for decoding on a CPU: same network, arrays as its products want them.

Three things (`experiments/benchmarks/cases_prepare.py` measures them):

layers      `nn.scan` over stacked layers copies the weights of each before it multiplies by them.
            Separate arrays are multiplied as they lie.
transposed  Forwards of 2 to 32 rows (B T) want weights as [O, I]; those of one row as [I, O].
head        The same for the map to the vocabulary, of which both forms are kept where the second
            serves forwards of one row.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from sbdjax import pytree
from sbdjax.nn.linear import Transposed, as_matrix

# The name of a prepared head among the parameters of a network.
HEAD = "prepared_head"

# A loop over separate layers takes longer to compile, a copy of a small layer stays in the cache:
# deep networks of small layers gain nothing by the clock, and stay stacked.
_FEW_LAYERS, _LAYER_BYTES = 12, 16 * 2**20


@pytree.dataclass
class Head:
  """The map from hidden states to the vocabulary.

  Attributes:
    rows: [V, D], the embedding or the head itself.
    columns: a copy [D, V] for forwards of one row, or None.
  """

  rows: Transposed
  columns: jax.Array | None

  def logits(self, hidden: jax.Array) -> jax.Array:
    """float32 [..., V] of hidden states [..., D]."""
    if self.columns is None or hidden.size != hidden.shape[-1]:
      return self.rows.times(hidden, jnp.float32)
    columns = self.columns.astype(hidden.dtype)
    return jnp.einsum("...d,dv->...v", hidden, columns, preferred_element_type=jnp.float32)


def on_one_cpu(params: Any) -> bool:
  """Whether all of `params` are arrays on one CPU, on no mesh (or numpy's, where JAX uses it)."""

  def is_there(x: Any) -> bool:
    if isinstance(x, jax.core.Tracer) or not isinstance(x, (jax.Array, np.ndarray)):
      return False
    if isinstance(x, np.ndarray):
      return jax.default_backend() == "cpu"
    alone = isinstance(x.sharding, SingleDeviceSharding)
    return alone and all(device.platform == "cpu" for device in x.devices())

  return all(map(is_there, jax.tree.leaves(params)))


def network(params: Any, rows: int) -> Any:
  """The parameters of a `Transformer`, prepared for forwards of `rows` rows; see `LM.prepare`."""
  head = params["head"] if "head" in params else params["embedding"]
  # One row reads columns of [D, V] faster than rows of [V, D].
  columns = jax.device_put(np.ascontiguousarray(np.asarray(head).T)) if rows == 1 else None
  return layers(params, rows) | {HEAD: Head(Transposed(head), columns)}


def layers(params: Any, rows: int) -> Any:
  """`params` with its "layers" separate, if there are few or large ones, and transposed.

  Separate layers that are not transposed share the memory of the stacked ones.
  """
  stacked = jax.tree.map(np.asarray, params["layers"])
  leaves = jax.tree.leaves(stacked)
  count, size = leaves[0].shape[0], sum(x.nbytes for x in leaves)
  if count > _FEW_LAYERS and size < count * _LAYER_BYTES:
    return params
  layer = lambda n: jax.tree_util.tree_map_with_path(
    lambda path, x: _of_layer(path[-1].key, x[n], rows), stacked
  )
  return {**params, "layers": tuple(layer(n) for n in range(count))}


def _of_layer(name: str, x: np.ndarray, rows: int) -> jax.Array | Transposed:
  if rows == 1 or not name.endswith("_kernel"):
    return jax.device_put(x)
  return Transposed(jax.device_put(np.ascontiguousarray(as_matrix(name, x).T)))
