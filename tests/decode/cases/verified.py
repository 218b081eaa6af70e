"""Cases of verified SBD."""

from sbdjax.decode.causal.drafting import Alternating, FanOut, Fused
from sbdjax.decode.causal.verified_sbd import VerifiedSBD
from sbdjax.decode.tokens import Greedy
from tests.decode import verified_reference as verified
from tests.decode.cases.case import MASK, WARM, Case, choice_of, finished

_GREEDY = Greedy()


def _verified(name, drafting, points, k, token=_GREEDY, long=False, alternate=False, **settings):
  """Verified SBD; `points` is the schedule as the reference knows it."""
  candidates = settings.get("candidates", False)
  return Case(
    f"sbd_verified {name} k={k}"
    + (" candidates" if candidates else "")
    + (" drawn" if token.draws else ""),
    VerifiedSBD(k, drafting, token=token, **settings),
    verified.reference(
      choice_of(token), k, points, finished, MASK, alternate=alternate, **settings
    ),
    long=long,
  )


CASES = [
  _verified("alternating", Alternating(), verified.whole_chain, 4, alternate=True, long=True),
  _verified("fused", Fused(), verified.whole_chain, 3, long=True),
  _verified("fan_out", FanOut(), verified.most_probable(0), 4, long=True),
  _verified("fan_out 2", FanOut(2), verified.most_probable(2), 4, long=True, candidates=True),
  _verified("fan_out", FanOut(), verified.most_probable(0), 3, WARM, candidates=True),
]
