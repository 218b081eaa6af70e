"""Inputs nobody thought of: JSON, bytes and flags, most of them a small step away from valid ones."""

from __future__ import annotations

import copy
import json
import os
import struct
from typing import Any

import hypothesis
from hypothesis import HealthCheck
from hypothesis import strategies as st

# Seconds in `make test`; `make fuzz` sets more.
EXAMPLES = int(os.environ.get("SBDJAX_FUZZ_EXAMPLES", "12"))
fuzz = hypothesis.settings(
  max_examples=EXAMPLES,
  deadline=None,
  derandomize=EXAMPLES <= 12,  # a failure of `make test` is there again the next time
  suppress_health_check=list(HealthCheck),
  database=None,
)

NUMBERS = st.one_of(
  st.integers(-3, 70),
  st.sampled_from([2**15, 2**31 - 1, 2**31, 2**32, 2**53, 2**63, 2**64, 10**12, 10**30, -(2**63)]),
  st.floats(allow_nan=False, allow_infinity=False),
  st.sampled_from([0.0, -0.0, 1e-320, 1e308, 0.5, 1.0]),
)
TEXTS = st.one_of(
  st.text(max_size=12),
  st.sampled_from(["", "a", "../x", "/etc/passwd", "a\0b", "\ud800", "é", "float32", "x" * 5000]),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
JSON = st.recursive(
  SCALARS,
  lambda inner: st.one_of(
    st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
  ),
  max_leaves=12,
)


def paths_of(value: Any, at: tuple = ()) -> list[tuple]:
  """The place of everything inside of a JSON value."""
  if not isinstance(value, (dict, list)):
    return []
  items = value.items() if isinstance(value, dict) else enumerate(value)
  found: list[tuple] = []
  for key, below in items:
    found += [(*at, key), *paths_of(below, (*at, key))]
  return found


@st.composite
def changed(draw: Any, value: Any) -> Any:
  """`value` with one to three of its parts replaced, removed or added."""
  made = copy.deepcopy(value)
  for _ in range(draw(st.integers(1, 3))):
    places = paths_of(made)
    if not places:
      return draw(JSON)
    *parents, key = draw(st.sampled_from(places))
    target = made
    for parent in parents:
      target = target[parent]
    action = draw(st.sampled_from(["replace", "replace", "replace", "remove", "add"]))
    if action == "remove":
      del target[key]
    elif action == "add" and isinstance(target, dict):
      target[draw(st.text(max_size=6))] = draw(JSON)
    else:
      target[key] = draw(JSON)
  return made


@st.composite
def changed_bytes(draw: Any, data: bytes) -> bytes:
  """`data` cut, with bytes replaced, or with numbers of a header made large."""
  made = bytearray(data)
  for _ in range(draw(st.integers(1, 4))):
    action = draw(st.sampled_from(["cut", "byte", "number", "insert", "double"]))
    at = draw(st.integers(0, max(0, min(len(made), 400) - 1)))
    if action == "cut":
      del made[draw(st.integers(0, len(made))) :]
    elif action == "byte" and made:
      made[at] = draw(st.integers(0, 255))
    elif action == "number":
      number = draw(st.sampled_from([0, 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1]))
      made[at : at + 4] = struct.pack("<I", number)
    elif action == "insert":
      made[at:at] = draw(st.binary(max_size=9))
    else:
      made += made[:100]
  return bytes(made)


def text_of(value: Any) -> str:
  """JSON as files hold it, whatever the value; lone surrogates are escaped."""
  return json.dumps(value, ensure_ascii=True)
