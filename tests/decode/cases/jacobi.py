"""Cases of Jacobi decoding."""


def _jacobi(name, rules, drafting, pool=None, choose=None, mode="batch", long=False):
  """Jacobi decoding; `rules` are those of the reference."""
  draw = sampling.greedy() if choose is None else choose
  return Case(
    f"jacobi {name}" + (", drafts drawn" if choose is None else " drawn"),
    lambda lm, limits: jacobi.make_sampler(
      lm, limits, verify.exact_match(draw), drafting, pool, mode
    ),
    jacobi_reference.reference(_greedy if choose is None else _drawn(choose), _finished, rules),
    long=long,
  )


CASES = [
  _jacobi("blocks", jacobi_reference.Rules(4), jacobi_drafts.blocks(4, _FROM_TEXT), long=True),
  _jacobi(
    "window, n-grams",
    jacobi_reference.Rules(3, window=True, pool=lambda: jacobi_reference.NGrams(12, 3, 2)),
    jacobi_drafts.window(3, _FROM_TEXT),
    jacobi_recycling.ngrams(12, 3, 2),
    choose=_WARM,
    long=True,
  ),
  _jacobi(
    "multiblock, n-grams",
    jacobi_reference.Rules(3, 3, 0.5, pool=lambda: jacobi_reference.NGrams(12, 4, 2)),
    jacobi_multiblock.multiblock(3, _FROM_TEXT, 3, 0.5),
    jacobi_recycling.ngrams(12, 4, 2),
    mode="tree",
  ),
  _jacobi(
    "multiblock, eager, points",
    jacobi_reference.Rules(3, 3, 0.5, eager=True, pool=lambda: jacobi_reference.Points(4)),
    jacobi_multiblock.multiblock(3, _FROM_TEXT, 3, 0.5, True),
    jacobi_recycling.points(4, 40),
    choose=_WARM,
    long=True,
  ),
]
