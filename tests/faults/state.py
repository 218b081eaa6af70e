"""Prints a hash of a run's newest checkpoint: python -m tests.faults.state WORKDIR"""

import hashlib
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

from sbdjax.train import checkpoints, step_files
from sbdjax.train.state import leaf_names


def main(workdir: pathlib.Path) -> None:
  """Every array of the train state bit for bit, and the data position."""
  checkpoints._silence_orbax()
  step = checkpoints.steps(workdir)[-1]
  folder = workdir / checkpoints.FOLDER / str(step)
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  abstract = jax.tree.map(
    lambda m: jax.ShapeDtypeStruct(m.shape, m.dtype, sharding=device),
    step_files.read_tree(folder),
    is_leaf=step_files.is_leaf,
  )
  found = hashlib.sha256(repr(step_files.read_position(folder)).encode())
  for name, leaf in leaf_names(step_files.read_state(folder, abstract)).items():
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      leaf = jax.random.key_data(leaf)
    values = np.asarray(leaf)
    found.update(f"{name} {values.dtype} {values.shape}".encode())
    found.update(values.tobytes())
  print(step, found.hexdigest())


if __name__ == "__main__":
  main(pathlib.Path(sys.argv[1]).resolve())
