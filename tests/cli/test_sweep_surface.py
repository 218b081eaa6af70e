"""What a sweep says of the surface over its points."""

import io

import numpy as np
import pytest
from rich.console import Console

from sbdjax.cli import sweep
from sbdjax.errors import UsageError

NAMES = ("decoder.block_size", "decoder.num_candidates", "tokens_per_second")


def rows_of(speed):
  return [
    {
      "settings": {"decoder": {"block_size": k, "num_candidates": c}},
      "tokens_per_second": speed(k, c),
    }
    for k in (4, 8, 16, 32, 64)
    for c in (1, 2, 4, 8)
  ]


def speed(k, c):
  """Highest, 900, at (16, 2); between the points of the grid nothing is higher."""
  return 900 - 30 * np.log2(k / 16) ** 2 - 40 * np.log2(c / 2) ** 2


def test_the_best_point_is_printed_and_the_map_drawn(tmp_path):
  console = Console(file=io.StringIO(), width=200)
  # A point of another method has no such settings.
  other = {"settings": {"decoder": {"name": "ar"}}, "tokens_per_second": 5000.0}
  sweep.conclude_surface([*rows_of(speed), other], NAMES, tmp_path, console)
  out = console.file.getvalue()
  for label in ("measured", "fitted"):
    assert f"best {label}: decoder.block_size=16, decoder.num_candidates=2: " in out
  assert out.count("tokens_per_second 900") == 2 and "degree 2" in out
  assert (tmp_path / "surface.png").read_bytes().startswith(b"\x89PNG")


def test_points_without_the_settings_are_refused(tmp_path):
  with pytest.raises(UsageError, match="no point of the sweep has decoder.blocksize"):
    sweep.conclude_surface(rows_of(speed), ("decoder.blocksize", *NAMES[1:]), tmp_path, Console())


@pytest.mark.parametrize(
  ("body", "message"),
  [("return 'a', 'b'", "two settings and a measurement"), ("return 1, 2, 3", "two settings")],
)
def test_get_surface_must_name_three(tmp_path, body, message):
  path = tmp_path / "config.py"
  path.write_text(f"def get_surface():\n  {body}\n")
  with pytest.raises(UsageError, match=message):
    sweep.read_surface(str(path))
  path.write_text("")
  assert sweep.read_surface(str(path)) is None
