"""A smooth surface through the points of a grid of two settings, and where it is highest.

Appendix E of Jacobi Forcing: tokens per second over block size and verification size, fitted by a
polynomial of total degree up to 6 whose degree is chosen by its squared error. Two departures: the
polynomial is in the logarithms of the settings, whose grids are geometric, and the error is that at
a point left out of the fit (the error at the fitted points alone falls with every degree). The
polynomial is smooth already, so nothing is interpolated or blurred after it.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from sbdjax import figures
from sbdjax.errors import UsageError

MAX_DEGREE = 6
_DENSE = 241


@dataclasses.dataclass(frozen=True)
class Surface:
  """z as a polynomial in log2 x and log2 y.

  Attributes:
    degree: total degree.
    errors: root mean squared error at a left-out point, by degree.
    centre, scale: of (log2 x, log2 y), which the polynomial sees centred and scaled.
    coefficients: one for each monomial of `_powers(degree)`.
    box: (smallest, largest) of x and of y: the surface says nothing outside.
  """

  degree: int
  errors: dict[int, float]
  centre: np.ndarray
  scale: np.ndarray
  coefficients: np.ndarray
  box: tuple[tuple[float, float], tuple[float, float]]

  def __call__(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """z at points given as two arrays of one shape."""
    points = np.stack([np.log2(x), np.log2(y)], axis=-1)
    return _design((points - self.centre) / self.scale, self.degree) @ self.coefficients

  def grid(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, y, z [241, 241] over the box, evenly spaced in the logarithms."""
    xs, ys = (np.geomspace(*side, _DENSE) for side in self.box)
    x, y = np.meshgrid(xs, ys, indexing="ij")
    return x, y, self(x, y)

  def best(self) -> tuple[float, float, float]:
    """(x, y, z) of the highest place of `grid`."""
    x, y, z = self.grid()
    at = np.unravel_index(np.argmax(z), z.shape)
    return float(x[at]), float(y[at]), float(z[at])


def _powers(degree: int) -> list[tuple[int, int]]:
  return [(total - j, j) for total in range(degree + 1) for j in range(total + 1)]


def _design(points: np.ndarray, degree: int) -> np.ndarray:
  u, v = points[..., 0], points[..., 1]
  return np.stack([u**i * v**j for i, j in _powers(degree)], axis=-1)


def left_out_error(design_NxM: np.ndarray, z_N: np.ndarray) -> float:
  """Root mean squared error of least squares at each point when the fit does not know it.

  In closed form, from the fit to all points: residual / (1 - leverage). Infinite where a point is
  the only one to determine a coefficient.
  """
  if np.linalg.matrix_rank(design_NxM) < design_NxM.shape[1]:
    return float("inf")
  q, _ = np.linalg.qr(design_NxM)
  leverage_N = np.sum(q**2, axis=1)
  residual_N = z_N - q @ (q.T @ z_N)
  if np.max(leverage_N) > 1 - 1e-9:
    return float("inf")
  return float(np.sqrt(np.mean((residual_N / (1 - leverage_N)) ** 2)))


def fit(x: Sequence[float], y: Sequence[float], z: Sequence[float]) -> Surface:
  """The polynomial of the degree with the smallest error at left-out points.

  Raises:
    UsageError: a setting that is not positive, or that takes one value only.
  """
  x_N, y_N, z_N = (np.asarray(values, float) for values in (x, y, z))
  for name, values in (("first", x_N), ("second", y_N)):
    if values.min() <= 0 or values.min() == values.max():
      raise UsageError(f"the {name} setting of get_surface needs several values, all above 0")
  points = np.stack([np.log2(x_N), np.log2(y_N)], axis=-1)
  centre, scale = points.mean(axis=0), points.std(axis=0)
  scaled = (points - centre) / scale
  errors = {d: left_out_error(_design(scaled, d), z_N) for d in range(MAX_DEGREE + 1)}
  errors = {d: error for d, error in errors.items() if np.isfinite(error)}
  if not errors:
    raise UsageError(f"{len(z)} points are too few for a surface: let get_sweep give more")
  degree = min(errors, key=errors.__getitem__)
  coefficients, *_ = np.linalg.lstsq(_design(scaled, degree), z_N, rcond=None)
  box = ((float(x_N.min()), float(x_N.max())), (float(y_N.min()), float(y_N.max())))
  return Surface(degree, errors, centre, scale, coefficients, box)


def draw(
  surface: Surface,
  x: Sequence[float],
  y: Sequence[float],
  labels: tuple[str, str, str],
  path: pathlib.Path,
) -> None:
  """The surface as a contour map, with the measured points and its highest place.

  Args:
    x, y: the settings that were measured.
    labels: of x, y and what is measured.
    path: PNG to write, whole or not at all; a PDF is written beside it.
  """
  with figures.drawing(path, figures.COLUMN, 2.9) as figure:
    axes = figure.add_subplot()
    # In steps that are read off, from light to dark also in grey.
    map_ = axes.contourf(*surface.grid(), levels=8, cmap="cividis")
    figure.colorbar(map_, label=labels[2])
    over: dict[str, Any] = dict(zorder=3, clip_on=False)
    axes.scatter(
      x, y, s=14, color="white", edgecolor="black", linewidth=0.6, label="measured", **over
    )
    best = surface.best()
    axes.scatter(*best[:2], s=70, marker="*", color=figures.COLOURS[1], edgecolor="white",
                 linewidth=0.6, label=f"best of the fit: {best[2]:,.4g}", **over)  # fmt: skip
    figures.log_axis(axes, "x", x)
    figures.log_axis(axes, "y", y)
    axes.set(xlabel=labels[0], ylabel=labels[1])
    axes.grid(False)
    figures.legend_below(figure, 2)
