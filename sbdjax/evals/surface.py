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

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sbdjax.data.files import write_atomically
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
  """The surface as a contour map, with the measured points and its highest place."""
  figure = Figure(figsize=(6.4, 4.8), layout="constrained")
  axes = figure.add_subplot()
  map_ = axes.contourf(*surface.grid(), levels=14, cmap="viridis")
  figure.colorbar(map_, label=labels[2])
  axes.scatter(x, y, s=18, color="black", zorder=3, label="measured")
  best = surface.best()
  axes.scatter(*best[:2], s=140, marker="*", color="#D55E00", edgecolor="white", zorder=4,
               label=f"best of the fit: {best[0]:.0f}, {best[1]:.1f}")  # fmt: skip
  axes.set_xscale("log", base=2)
  axes.set_yscale("log", base=2)
  for side, values in ((axes.xaxis, x), (axes.yaxis, y)):
    ticks = sorted(set(values))
    side.set_ticks(ticks, [f"{t:g}" for t in ticks])
  axes.set_xlabel(labels[0])
  axes.set_ylabel(labels[1])
  axes.set_title(f"polynomial of degree {surface.degree} in the logarithms", fontsize=10)
  axes.legend(loc="upper right", fontsize=8)
  FigureCanvasAgg(figure)
  write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=140))
