"""Cases of verified SBD."""

from functools import partial

from sbdjax.decode.causal.drafting import Alternating, FanOut, Fused, NoDrafting
from sbdjax.decode.causal.lookup import NoLookup, TextLookup
from sbdjax.decode.causal.verified_sbd import VerifiedSBD
from sbdjax.decode.tokens import Greedy
from tests.decode import verified_reference as verified
from tests.decode.cases.case import MASK, WARM, Case, choice_of, finished

_GREEDY = Greedy()


def _verified(
  name, drafting, points, k, token=_GREEDY, long=False, alternate=False, candidates=False, look=()
):
  """Verified SBD; `points` is the schedule as the reference knows it, `look` what is looked up."""
  lookup = (
    partial(verified.looked_up, r=look[0], longest=look[1], shortest=look[2]) if look else None
  )
  return Case(
    f"sbd_verified {name} k={k}"
    + (" candidates" if candidates else "")
    + (" lookup" if look else "")
    + (" drawn" if token.draws else ""),
    VerifiedSBD(k, drafting, candidates, TextLookup(*look) if look else NoLookup(), token=token),
    verified.reference(
      choice_of(token),
      k,
      points,
      finished,
      MASK,
      candidates,
      alternate,
      lookup or (lambda text: []),
    ),
    long=long,
  )


CASES = [
  _verified("alternating", Alternating(), verified.whole_chain, 4, alternate=True, long=True),
  _verified("fused", Fused(), verified.whole_chain, 3, long=True),
  _verified("fan_out", FanOut(), verified.most_probable(0), 4, long=True),
  _verified("fan_out 2", FanOut(2), verified.most_probable(2), 4, long=True, candidates=True),
  _verified("fan_out", FanOut(), verified.most_probable(0), 3, WARM, long=True, candidates=True),
  _verified(
    "fan_out", FanOut(), verified.most_probable(0), 3, WARM, candidates=True, look=(4, 2, 1)
  ),
  _verified(
    "alternating", Alternating(), verified.whole_chain, 3, long=True, alternate=True, look=(4, 2, 1)
  ),
  _verified("fused", Fused(), verified.whole_chain, 5, WARM, long=True, look=(2, 3, 1)),
  _verified("none", NoDrafting(), verified.nowhere, 16, long=True, look=(3, 2, 1)),
]
