"""Device memory of a program at its peak."""

from __future__ import annotations

from typing import Any, NamedTuple

from sbdjax.bench.timing import Program


class Peak(NamedTuple):
  """Device memory of a program at its peak.

  Attributes:
    bytes: how much.
    source: "device": the highest the device reports for this process, which this program reached;
      "compiled": `Program.memory_bytes`, where the device reports nothing (CPU) or an earlier
      program had reached more.
  """

  bytes: int
  source: str


def high_water(device: Any) -> int | None:
  """The most bytes this process ever held on `device`; None where it does not report them."""
  return (device.memory_stats() or {}).get("peak_bytes_in_use")


def peak_of(program: Program, before: int | None, after: int | None) -> Peak:
  """The peak of a program, from `high_water` before and after it first ran."""
  if after is not None and (before is None or after > before):
    return Peak(after, "device")
  return Peak(program.memory_bytes, "compiled")
