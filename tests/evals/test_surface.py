"""The fitted surface: it finds a polynomial and its summit, and does not follow noise."""

import itertools

import numpy as np
import pytest

from sbdjax.errors import UsageError
from sbdjax.evals import surface

GRID = list(itertools.product([8, 16, 32, 64, 128, 256], [1, 2, 4, 8, 12]))
X, Y = (np.array(side, float) for side in zip(*GRID, strict=True))


def hill(x, y):
  """Of degree 2 in the logarithms; highest, 500, at x = 48 and y = 3."""
  u, v = np.log2(x / 48), np.log2(y / 3)
  return 500 - 20 * u**2 - 8 * v**2 - 5 * u * v


def test_a_polynomial_is_found_with_its_degree_and_summit():
  fitted = surface.fit(X, Y, hill(X, Y))
  assert fitted.errors[2] < 1e-9 < fitted.errors[1]
  np.testing.assert_allclose(fitted(X, Y), hill(X, Y))
  x, y, z = fitted.best()
  # As near as a grid of 241 x 241 places comes.
  np.testing.assert_allclose([x, y, z], [48, 3, 500], rtol=0.02)


def test_the_degree_is_that_of_the_signal_not_of_the_noise():
  noise = np.random.default_rng(0).normal(size=len(X))
  fitted = surface.fit(X, Y, hill(X, Y) + 3 * noise)
  assert fitted.degree == 2 and fitted.errors[4] > fitted.errors[2]
  assert 6 not in fitted.errors  # five values of y determine no sixth power


def test_the_error_at_left_out_points_is_that_of_fits_without_them():
  rng = np.random.default_rng(1)
  design, z = rng.normal(size=(12, 4)), rng.normal(size=12)
  errors = []
  for i in range(12):
    keep = np.arange(12) != i
    coefficients, *_ = np.linalg.lstsq(design[keep], z[keep], rcond=None)
    errors.append(z[i] - design[i] @ coefficients)
  np.testing.assert_allclose(surface.left_out_error(design, z), np.sqrt(np.mean(np.square(errors))))


def test_a_point_that_alone_fixes_a_coefficient_has_no_error():
  design = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
  assert surface.left_out_error(design, np.ones(3)) == float("inf")


def test_the_summit_stays_inside_what_was_measured():
  x, y, _ = surface.fit(X, Y, np.log2(X) + np.log2(Y)).best()
  np.testing.assert_allclose([x, y], [256, 12])


@pytest.mark.parametrize(
  ("x", "y", "message"),
  [([8, 8, 8], [1, 2, 3], "first setting"), ([8, 16, 32], [0, 1, 2], "second setting")],
)
def test_settings_without_a_surface_are_refused(x, y, message):
  with pytest.raises(UsageError, match=message):
    surface.fit(x, y, [1, 2, 3])


def test_the_map_is_drawn(tmp_path):
  fitted = surface.fit(X, Y, hill(X, Y))
  surface.draw(fitted, X, Y, ("block size", "candidates", "tokens/s"), tmp_path / "map.png")
  data = (tmp_path / "map.png").read_bytes()
  assert data.startswith(b"\x89PNG") and len(data) > 20_000
