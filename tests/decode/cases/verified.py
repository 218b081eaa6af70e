"""Cases of verified SBD (to be ported)."""


def _verified(name, schedule, points, k, choose=None, long=False, **settings):
  """Verified SBD; `points` is the schedule as the reference knows it."""
  draw = sampling.greedy() if choose is None else choose
  candidates = settings.get("candidates", False)
  return Case(
    f"sbd_verified {name} k={k}"
    + (" candidates" if candidates else "")
    + ("" if choose is None else " drawn"),
    lambda lm, limits: sbd_verified.make_sampler(
      lm, limits, draw, verify.exact_match(draw), schedule, k, candidates
    ),
    verified.reference(
      _greedy if choose is None else _drawn(choose), k, points, _finished, MASK, **settings
    ),
    long=long,
  )


CASES = [
  _verified(
    "alternating", sbd_verified.alternating(), verified.whole_chain, 4, alternate=True, long=True
  ),
  _verified("fused", sbd_verified.fused(), verified.whole_chain, 3, long=True),
  _verified("fan_out", sbd_verified.fan_out(), verified.most_probable(0), 4, long=True),
  _verified(
    "fan_out 2",
    sbd_verified.fan_out(2),
    verified.most_probable(2),
    4,
    long=True,
    candidates=True,
  ),
  _verified(
    "fan_out", sbd_verified.fan_out(), verified.most_probable(0), 3, _WARM, candidates=True
  ),
]
