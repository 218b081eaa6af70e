"""What prompts of many calls begin with, run once: the solved examples of a benchmark, a system message.

Answers do not depend on it: a prompt's keys and values are those of its tokens, whoever ran them. Methods
without an exact cache (`Method.cache_slots`) run all of every prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from sbdjax.decode import sizes
from sbdjax.decode.base import Limits
from sbdjax.decode.causal.ar import prefill
from sbdjax.decode.kept import KeptText, common
from sbdjax.decode.method import Method
from sbdjax.lm import LM
from sbdjax.sigma_lm import SigmaLM

# Shorter beginnings are run with their prompts: a program more is not worth them.
_WORTH = 64
# Whether a method keeps an exact cache does not depend on the limits.
_ANY = Limits(1)


class Beginnings:
  """The beginning that prompts of a model's calls have in common.

  Which tokens they are follows from the prompts of a call and the last call's first one: what all of
  these begin with, where that is `_WORTH` tokens more than what is there. So single prompts share their
  beginning from the second call on.

  Attributes:
    tokens_run: of all beginnings so far.
  """

  def __init__(self, lm: LM | SigmaLM, params: Any):
    """For calls with these parameters."""
    self._lm, self._params = lm, params
    self._text: KeptText | None = None
    self._last: Sequence[int] | None = None
    self._run = jax.jit(self._prefill)
    self.tokens_run = 0

  def of(self, method: Method, prompts: Sequence[Sequence[int]]) -> KeptText | None:
    """A text that all of `prompts` begin with as it does, for at least `_WORTH` tokens; or None."""
    if method.cache_slots(1, _ANY) is None:
      return None
    known = list(prompts) if self._last is None else [self._last, *prompts]
    self._last = prompts[0]
    have = 0 if self._text is None else self._text.of_prompts(prompts)
    shared = min(min(common(known[0], x) for x in known), *(len(x) - 1 for x in known))
    if len(known) > 1 and shared >= have + _WORTH:
      self._text, have = self._of(known[0][:shared]), shared
    return self._text if have >= _WORTH else None

  def _of(self, tokens: Sequence[int]) -> KeptText:
    padded = np.zeros((1, sizes.rest(len(tokens))), np.int32)
    padded[0, : len(tokens)] = tokens
    self.tokens_run += len(tokens)
    cache = self._run(self._params, padded, np.array([len(tokens)], np.int32))
    return KeptText(list(tokens), cache)

  def _prefill(self, params: Any, prompt_BxP: jax.Array, length_B: jax.Array) -> Any:
    assert isinstance(self._lm, LM)  # others have no method with an exact cache
    return prefill(self._lm, params, prompt_BxP, length_B, prompt_BxP.shape[1])
