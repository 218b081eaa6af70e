"""Cases of the models whose committed text is causal: AR, SBD and verified SBD."""

import jax

from sbdjax.decode import rules
from sbdjax.decode.causal.ar import AR
from sbdjax.decode.causal.sbd import SBD
from sbdjax.decode.tokens import Categorical, Greedy
from tests.decode.cases.case import GREEDY, MASK, WARM, Case, choice_of, finished
from tests.reference import network, reveal, visibility


def reference_ar(choose):
  """One token per forward, everything recomputed each time."""

  def run(logits_fn, prompt, limit, key):
    x, steps = list(prompt), []
    while finished(x[len(prompt) :], limit) is None:
      logits = logits_fn(x, visibility.causal(len(x)))[-1]
      steps.append(len(steps))
      x.append(choose(jax.random.fold_in(key, len(x)), logits))
    return x[len(prompt) :], len(steps), steps

  return run


def reference_sbd(choose, rule, value, k):
  """Algorithms 2 and 3: causal past, bidirectional block, everything recomputed each time."""

  def run(logits_fn, prompt, limit, key):
    x, steps, nfe = list(prompt), {}, 0
    while True:
      t, canvas = len(x), [MASK] * k
      while MASK in canvas:
        logits = logits_fn(x + canvas, visibility.open_block(t + k, t, t + k))[t:]
        proposal = choose(jax.random.fold_in(key, nfe), logits)
        masked = [i for i in range(k) if canvas[i] == MASK]
        for i in rule(network.softmax(logits), masked, value):
          canvas[i], steps[t + i] = int(proposal[i]), nfe
        nfe += 1
        final = canvas[: canvas.index(MASK)] if MASK in canvas else canvas
        generated = finished(x[len(prompt) :] + final, limit)
        if generated is not None:
          return generated, nfe, [steps[len(prompt) + i] for i in range(len(generated))]
      x += canvas

  return run


_NUCLEUS = Categorical(temperature=0.8, top_k=5, top_p=0.9)


def _ar(token, **settings):
  name = "ar drawn" if token.draws else "ar"
  return Case(name, AR(token), reference_ar(choice_of(token)), **settings)


def _sbd(rule, name, value, k, token=GREEDY, long=False):
  return Case(
    f"sbd {name} {value} k={k}" + (" drawn" if token.draws else ""),
    SBD(k, rule, token),
    reference_sbd(choice_of(token), getattr(reveal, name), value, k),
    long=long,
  )


CASES = [
  _ar(Greedy()),
  _ar(_NUCLEUS, long=True),
  _sbd(rules.EBEntropy(0.0), "eb_entropy", 0.0, 4, long=True),
  _sbd(rules.EBEntropy(0.8), "eb_entropy", 0.8, 4, long=True),
  # The block is longer than the limit.
  _sbd(rules.EBConfidence(1.5), "eb_confidence", 1.5, 16, long=True),
  _sbd(rules.Factor(1.5), "factor", 1.5, 3, long=True),
  _sbd(rules.ConfidenceThreshold(0.4), "confidence_threshold", 0.4, 5, long=True),
  _sbd(rules.TopK(2), "top_k", 2, 1, long=True),  # blocks of one token
  _sbd(rules.EBEntropy(0.8), "eb_entropy", 0.8, 4, WARM),
]
