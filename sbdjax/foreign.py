"""Files from elsewhere: what they may be, where they may lie, and JSON that is checked before use.

Checkpoints, tokenizers, data sets and templates come from strangers. Whoever reads one goes through
here: `regular` for what a path may be, `inside` for a name that a file gives, `read_json` and
`check` for what it says. Errors name the file and the field.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import stat
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from sbdjax.errors import CheckpointError, SbdjaxError

# Larger than any settings, index or record of a real model (an index of 100,000 tensors has 10 MB).
MAX_JSON_BYTES = 1 << 28
# Brackets inside of one another; settings of models have four or five.
MAX_DEPTH = 64
_INT64 = 2**63

Failure = Callable[[str], SbdjaxError]


def regular(path: str | os.PathLike, error: Failure = CheckpointError) -> pathlib.Path:
  """`path`, of which reading ends: no pipe (which may hang), device (which may never end) or socket.

  A path with nothing at it is returned as well: to open it says what is wrong.

  Raises:
    error: it is something else than a file or a folder.
  """
  path = pathlib.Path(path)
  try:
    mode = path.stat().st_mode
  except (OSError, ValueError):
    return path
  if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
    raise error(f"{path} is no ordinary file but a pipe, device or socket: copy it into a file")
  return path


def inside(
  folder: pathlib.Path, name: str, field: str, error: Failure = CheckpointError
) -> pathlib.Path:
  """The file `name` of `folder`, which a file in it names.

  Links may lead elsewhere in the folder, and from a snapshot of the Hugging Face cache to its blobs.

  Args:
    field: where the name was found, for messages.

  Raises:
    error: an absolute name, one that leaves the folder, or a link that does.
  """
  plain = pathlib.PurePosixPath(name)
  if not name or "\0" in name or plain.is_absolute() or ".." in plain.parts or "\\" in name:
    raise error(
      f"{field} names {name!r}, which does not lie in {folder}: only files in it are read"
    )
  return contained(folder, folder / name, error)


def contained(
  folder: pathlib.Path, path: pathlib.Path, error: Failure = CheckpointError
) -> pathlib.Path:
  """`path`, which must lie in `folder` after its links are followed; see `inside`."""
  try:
    root, target = folder.resolve(), path.resolve()
  except (OSError, RuntimeError) as e:
    raise error(f"cannot read {path}: {getattr(e, 'strerror', None) or e}") from e
  # HUB/models--x/snapshots/REVISION/file links to HUB/models--x/blobs/HASH.
  blobs = [root.parents[1] / "blobs"] if root.parent.name == "snapshots" else []
  if not any(target.is_relative_to(place) for place in (root, *blobs)):
    raise error(f"{path} is a link to {target}, outside of {folder}: copy the file there")
  return regular(path, error)


def read_json(
  path: str | os.PathLike, hint: Any = dict[str, Any], error: Failure = CheckpointError
) -> Any:
  """The value of a JSON file.

  Args:
    hint: its type; see `check`.

  Raises:
    error: unreadable, too large, no JSON, or another type.
  """
  path = regular(path, error)
  try:
    size = path.stat().st_size
    if size > MAX_JSON_BYTES:
      raise error(f"{path} has {size:,} bytes, more than {MAX_JSON_BYTES:,}: it is no such file")
    data = path.read_bytes()
  except (OSError, ValueError) as e:
    raise error(f"cannot read {path}: {getattr(e, 'strerror', None) or e}") from e
  return parse_json(data, str(path), hint, error)


def parse_json(
  text: str | bytes, where: str, hint: Any = Any, error: Failure = CheckpointError
) -> Any:
  """The value of a JSON text, of a type and no more than `MAX_DEPTH` deep.

  NaN and infinities, which are no JSON, are refused.

  Args:
    where: what holds it, for messages.
    hint: its type; see `check`.
  """

  def constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")

  try:
    text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    found = json.loads(text, parse_constant=constant)
  except (ValueError, RecursionError) as e:
    reason = "it is nested too deep" if isinstance(e, RecursionError) else e
    raise error(f"cannot read {where}: {reason}") from e
  _check_values(found, where, error)
  return check(found, hint, where, error)


def _check_values(value: Any, where: str, error: Failure) -> None:
  """Bounds depth and numbers, without recursion of its own."""
  level = [value]
  for _ in range(MAX_DEPTH):
    below: list[Any] = []
    for x in level:
      if isinstance(x, dict):
        below += x.values()
      elif isinstance(x, list):
        below += x
      elif isinstance(x, float) and not math.isfinite(x):
        raise error(f"cannot read {where}: it holds a number that is too large")
    level = below
    if not level:
      return
  raise error(f"cannot read {where}: it is nested more than {MAX_DEPTH} deep")


def check(value: Any, hint: Any, where: str, error: Failure = CheckpointError) -> Any:
  """`value`, which must be of a type.

  Args:
    hint: Any, None, bool, int (of 64 bits, no bool), float (finite; an int will do), str,
      `list[T]`, `dict[str, T]`, `Literal`, unions, or a TypedDict: an object of which the keys that
      it names are checked and the required ones must be there; others are left as they are.
    where: the field, for messages.

  Raises:
    error: it is of another type; the message names the field and what it holds.
  """
  problem = _problem(value, hint, where)
  if problem is not None:
    raise error(problem)
  return value


def _problem(value: Any, hint: Any, where: str) -> str | None:
  """What is wrong with the first field that is."""
  origin, args = typing.get_origin(hint), typing.get_args(hint)
  if hint is Any:
    return None
  if typing.is_typeddict(hint):
    return _problem_of_fields(value, hint, where)
  if origin in (typing.Union, types.UnionType):
    found = [_problem(value, member, where) for member in args]
    if None in found:
      return None
    # The message of the member that is nearest: a container whose inside is wrong.
    inner = [x for x in found if x and not x.startswith(f"{where} is ")]
    return inner[0] if inner else _mismatch(value, hint, where)
  if origin is typing.Literal:
    return None if value in args else _mismatch(value, hint, where)
  if origin is list and isinstance(value, list):
    items = (_problem(x, args[0], f"{where}[{i}]") for i, x in enumerate(value))
    return next(filter(None, items), None)
  if origin is dict and isinstance(value, dict):
    items = (_problem(x, args[1], f"{where}: {key}") for key, x in value.items())
    return next(filter(None, items), None)
  return None if _is_plain(value, hint) else _mismatch(value, hint, where)


def _is_plain(value: Any, hint: Any) -> bool:
  if hint is None or hint is type(None):
    return value is None
  if hint is int:
    return type(value) is int and -_INT64 <= value < _INT64
  if hint is float:
    return type(value) in (int, float) and abs(value) < _INT64 and math.isfinite(value)
  return isinstance(hint, type) and isinstance(value, hint) and not typing.get_origin(hint)


def _problem_of_fields(value: Any, hint: Any, where: str) -> str | None:
  if not isinstance(value, Mapping):
    return f"{where} is {_shown(value)}, where an object is expected"
  hints = typing.get_type_hints(hint)
  for name in sorted(hint.__required_keys__):
    if name not in value:
      return f"{where} lacks {name!r}"
  fields = ((name, hints[name]) for name in value if name in hints)
  return next(filter(None, (_problem(value[n], h, f"{where}: {n}") for n, h in fields)), None)


def _mismatch(value: Any, hint: Any, where: str) -> str:
  return f"{where} is {_shown(value)}, where {_described(hint)} is expected"


def _shown(value: Any) -> str:
  text = repr(value) if not isinstance(value, int) or abs(value) < _INT64 else "a huge number"
  return text if len(text) <= 60 else f"{text[:57]}..."


def _described(hint: Any) -> str:
  """A type in the words of JSON."""
  args = typing.get_args(hint)
  if typing.get_origin(hint) in (typing.Union, types.UnionType):
    return " or ".join(map(_described, args))
  if typing.get_origin(hint) is typing.Literal:
    return " or ".join(map(repr, args))
  names: dict[Any, str] = {
    None: "null",
    type(None): "null",
    bool: "true or false",
    int: "a whole number",
  }
  names |= {float: "a number", str: "a text", list: "a list", dict: "an object"}
  return names.get(hint) or names.get(typing.get_origin(hint)) or "an object"
