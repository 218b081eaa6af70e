"""Cases of Jacobi decoding."""

from sbdjax.decode.jacobi.jacobi import Jacobi, JacobiMultiblock, JacobiWindow
from sbdjax.decode.jacobi.recycling import NGrams, Points
from tests.decode import jacobi_reference as reference
from tests.decode.cases.case import WARM, Case, choice_of, finished


def _jacobi(name, rules, method, long=False):
  """Jacobi decoding; `rules` are those of the reference."""
  return Case(
    f"jacobi {name}" + (" drawn" if method.token.draws else ", drafts drawn"),
    method,
    reference.reference(choice_of(method.token), finished, rules),
    long=long,
  )


CASES = [
  _jacobi("blocks", reference.Rules(4), Jacobi(4), long=True),
  _jacobi(
    "window, n-grams",
    reference.Rules(3, window=True, pool=lambda: reference.NGrams(12, 3, 2)),
    JacobiWindow(3, pool=NGrams(12, 3, 2, "batch"), token=WARM),
    long=True,
  ),
  _jacobi(
    "multiblock, n-grams",
    reference.Rules(3, 3, 0.5, pool=lambda: reference.NGrams(12, 4, 2)),
    JacobiMultiblock(3, pool=NGrams(12, 4, 2, "tree"), num_blocks=3, spawn_ratio=0.5),
  ),
  _jacobi(
    "multiblock, eager, points",
    reference.Rules(3, 3, 0.5, eager=True, pool=lambda: reference.Points(4)),
    JacobiMultiblock(
      3, pool=Points(3, "batch"), num_blocks=3, spawn_ratio=0.5, eager=True, token=WARM
    ),
    long=True,
  ),
]
