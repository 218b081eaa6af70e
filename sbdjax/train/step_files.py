"""What is inside one checkpoint: its arrays, compared by name before they are read, and the data position."""

from __future__ import annotations

import difflib
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from sbdjax.errors import CheckpointError, DamagedError
from sbdjax.train.state import leaf_names


def one_line(error: BaseException) -> str:
  """The first line of a library's message, short enough for a terminal."""
  lines = str(error).strip().splitlines()
  text = " ".join(lines[0].split()) if lines else type(error).__name__
  return text if len(text) <= 300 else text[:297] + "..."


def is_leaf(x: Any) -> bool:
  return hasattr(x, "shape") and hasattr(x, "dtype")


def read_tree(folder: pathlib.Path) -> dict[str, Any]:
  """Shapes and dtypes of the arrays in a checkpoint, nested as they were."""
  try:
    with ocp.StandardCheckpointer() as checkpointer:
      return checkpointer.metadata(folder / "state").item_metadata.tree
  except Exception as e:
    raise DamagedError(f"{folder / 'state'} is no train state: {one_line(e)}") from e


def check_tree(folder: pathlib.Path, expected: dict[str, Any]) -> None:
  """Compares names, dtypes and shapes before anything is read, so that the error can name the array."""
  stored = {
    name: _describe(leaf) for name, leaf in leaf_names(read_tree(folder)).items() if is_leaf(leaf)
  }
  wanted = {name: _describe(leaf) for name, leaf in expected.items()}
  advice = "use the configuration in its config.json, or another --workdir"
  for name, array in wanted.items():
    if name not in stored:
      close = difflib.get_close_matches(name, stored.keys() - wanted.keys(), 1)
      hint = f" (it has {close[0]})" if close else ""
      raise CheckpointError(f"{folder} has no {name}, {array}{hint}: {advice}")
    if stored[name] != array:
      raise CheckpointError(
        f"{folder} holds {name} as {stored[name]} where {array} was expected: {advice}"
      )
  extra = sorted(stored.keys() - wanted.keys())
  if extra:
    raise CheckpointError(
      f"{folder} holds {extra[0]}, {stored[extra[0]]}, which was not expected: {advice}"
    )


def _describe(leaf: Any) -> str:
  """Dtype and shape on disk, as `float32[2, 3]`; a typed PRNG key is stored as its words."""
  if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
    leaf = jax.eval_shape(jax.random.key_data, leaf)
  return f"{jnp.dtype(leaf.dtype).name}{list(leaf.shape)}"


def read_state(folder: pathlib.Path, abstract: Any) -> Any:
  """Restores the arrays of `abstract`, which may be a part of what is stored."""
  try:
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
      restore_args = ocp.checkpoint_utils.construct_restore_args(abstract)
      args = ocp.args.PyTreeRestore(item=abstract, restore_args=restore_args, partial_restore=True)
      return checkpointer.restore(folder / "state", args=args)
  except Exception as e:
    raise DamagedError(f"cannot read {folder / 'state'}: {one_line(e)}") from e


def read_position(folder: pathlib.Path) -> Any:
  try:
    with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as checkpointer:
      return checkpointer.restore(folder / "data")
  except Exception as e:
    raise DamagedError(f"{folder / 'data'} is no data position: {one_line(e)}") from e
