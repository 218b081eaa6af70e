"""What a sampler is tested against: a `Case`, and the helpers of its references.

A reference is `(logits_fn, prompt, limit, key) -> (generated tokens, nfe, reveal steps)`, where
`logits_fn(tokens, visible)` is the network in float64 numpy with the mask token taken out.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sbdjax.decode.tokens import Categorical, Greedy
from tests import models

MASK, EOS = 11, (3, 7)
CONFIG = models.config(vocab_size=12, mask_id=MASK, tie_embeddings=False)
MAX_TOKENS = 11


class Case(NamedTuple):
  """A sampler.

  Attributes:
    method: its settings.
    model: the model it decodes, made of the tiny LM.
    fills_canvas: its output is the whole canvas, not a text that ends.
    sees_limit: the model sees how long the canvas is, so a limit changes what stands before it.
    long: not part of `make test`; others cover what it does.
  """

  name: str
  method: Any
  reference: Callable
  model: Callable[[Any], Any] = lambda lm: lm
  fills_canvas: bool = False
  sees_limit: bool = False
  long: bool = False

  def build(self, lm, limits):
    return self.method.sampler(self.model(lm), limits)


def finished(generated, limit):
  """The generated tokens that count, if the row ends with them, else None."""
  for i, token in enumerate(generated[:limit]):
    if token in EOS:
      return generated[: i + 1]
  return generated[:limit] if len(generated) >= limit else None


def greedy(key, logits):
  del key
  return np.argmax(logits, axis=-1)


def drawn(token):
  """Token choice of a reference: which noise belongs to which key is the package's business; which
  key is used where is not."""

  def run(key, logits):
    return np.asarray(token(key, np.asarray(logits, np.float32)))

  return run


def choice_of(token):
  """As `drawn`, or `greedy` for a token sampler that does not draw."""
  return drawn(token) if token.draws else greedy


GREEDY = Greedy()
WARM = Categorical(temperature=0.7)
