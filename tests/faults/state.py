"""Prints a hash of a run's newest checkpoint: python -m tests.faults.state WORKDIR"""

import hashlib
import pathlib
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp

from sbdjax.train import checkpoints

if __name__ == "__main__":
  workdir = pathlib.Path(sys.argv[1]).resolve()
  step = checkpoints.steps(workdir)[-1]
  folder = workdir / "checkpoints" / str(step)
  found = hashlib.sha256()
  with ocp.PyTreeCheckpointer() as reader:
    tree = reader.restore(folder / "state")
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    values = np.asarray(leaf)
    found.update(f"{jax.tree_util.keystr(path)} {values.dtype} {values.shape}".encode())
    found.update(values.tobytes())
  position = next((folder / "data").glob("*"))
  found.update(position.read_bytes())
  print(step, found.hexdigest())
