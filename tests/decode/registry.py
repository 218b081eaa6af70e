"""Every sampler of the package, each with a reference that decodes one row without a cache.

A new method adds its cases to a module of `tests.decode.cases`; it has then passed the contract of
test_contract.py, or not.
"""

from tests.decode.cases import any_order, causal, diffusion, jacobi, verified
from tests.decode.cases.case import CONFIG, EOS, MASK, MAX_TOKENS

__all__ = ["CONFIG", "EOS", "MASK", "MAX_TOKENS", "SAMPLERS"]

SAMPLERS = [
  case for family in (causal, verified, diffusion, any_order, jacobi) for case in family.CASES
]
