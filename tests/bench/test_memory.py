"""Peaks of memory: which figure is taken, and whose it is."""

import pytest

from sbdjax.bench import memory
from sbdjax.bench.timing import Program

PROGRAM = Program(None, 1.0, 1.0, memory_bytes=100, temporary_bytes=40)


@pytest.mark.parametrize(
  "before, after, expected",
  [
    (None, None, (100, "compiled")),  # the device reports nothing
    (80, 130, (130, "device")),
    (130, 130, (100, "compiled")),  # an earlier program had reached more
    (None, 130, (130, "device")),
  ],
)
def test_the_high_water_mark_counts_where_this_program_set_it(before, after, expected):
  assert memory.peak_of(PROGRAM, before, after) == expected


def test_high_water():
  class Device:
    def __init__(self, stats):
      self.memory_stats = lambda: stats

  assert memory.high_water(Device({"peak_bytes_in_use": 7, "bytes_in_use": 3})) == 7
  assert memory.high_water(Device(None)) is None and memory.high_water(Device({})) is None
