"""JSON that every reader takes: no NaN and no infinity, which are null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def dumps(value: Any, **kwargs: Any) -> str:
  """`json.dumps`, with null for numbers that are not finite."""
  return json.dumps(finite(value), allow_nan=False, **kwargs)


def finite(value: Any) -> Any:
  """`value` with None in place of every float, however deep, that is not finite."""
  if isinstance(value, float):
    return value if math.isfinite(value) else None
  if isinstance(value, Mapping):
    return {name: finite(x) for name, x in value.items()}
  return [finite(x) for x in value] if isinstance(value, (list, tuple)) else value
