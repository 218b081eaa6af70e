"""Every sampler of the package, each with a reference that decodes one row without a cache.

A new sampler is added to `SAMPLERS` and has then passed the contract of test_contract.py, or not.
A reference is `(logits_fn, prompt, limit, key) -> (generated tokens, nfe, reveal steps)`, where
`logits_fn(tokens, visible)` is the network in float64 numpy with the mask token taken out.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from sbdjax import corruption
from sbdjax.decode import (
  ar,
  canvas,
  diffusion,
  freedave,
  jacobi,
  jacobi_drafts,
  jacobi_multiblock,
  jacobi_recycling,
  mdm,
  sampling,
  sbd,
  sbd_verified,
  schedule,
  select,
  ssmd,
  verify,
  windows,
)
from sbdjax.decode.base import Limits, Sampler
from sbdjax.decode.forward import Forwarding
from sbdjax.lm import LM
from tests import models
from tests.decode import diffusion_reference, fill_reference, jacobi_reference
from tests.decode import verified_reference as verified
from tests.reference import network, reveal, visibility

MASK, EOS = 11, (3, 7)
CONFIG = models.config(vocab_size=12, mask_id=MASK, tie_embeddings=False)
MAX_TOKENS = 11


class Case(NamedTuple):
  """A sampler.

  Attributes:
    fills_canvas: its output is the whole canvas, not a text that ends.
    sees_limit: the model sees how long the canvas is, so a limit changes what stands before it.
    long: not part of `make test`; others cover what it does.
  """

  name: str
  build: Callable[[LM, Limits], Sampler]
  reference: Callable
  fills_canvas: bool = False
  sees_limit: bool = False
  long: bool = False


def _finished(generated, limit):
  """The generated tokens that count, if the row ends with them, else None."""
  for i, token in enumerate(generated[:limit]):
    if token in EOS:
      return generated[: i + 1]
  return generated[:limit] if len(generated) >= limit else None


def reference_ar(choose):
  """One token a forward, everything recomputed each time."""

  def run(logits_fn, prompt, limit, key):
    x, steps = list(prompt), []
    while _finished(x[len(prompt) :], limit) is None:
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
        generated = _finished(x[len(prompt) :] + final, limit)
        if generated is not None:
          return generated, nfe, [steps[len(prompt) + i] for i in range(len(generated))]
      x += canvas

  return run


def _greedy(key, logits):
  del key
  return np.argmax(logits, axis=-1)


def _drawn(choose):
  # Which noise belongs to which key is the package's business; which key is used where is not.
  def run(key, logits):
    return np.asarray(choose(key, np.asarray(logits, np.float32)))

  return run


_NUCLEUS = sampling.categorical(temperature=0.8, top_k=5, top_p=0.9)
_WARM = sampling.categorical(temperature=0.7)


def _sbd(name, k, value, choose=None, long=False):
  draw = sampling.greedy() if choose is None else choose
  rule = getattr(select, name)
  return Case(
    f"sbd {name} {value} k={k}" + ("" if choose is None else " drawn"),
    lambda lm, limits: sbd.make_sampler(lm, limits, draw, rule(value), k),
    reference_sbd(_greedy if choose is None else _drawn(choose), getattr(reveal, name), value, k),
    long=long,
  )


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


def _diffusion(name, cache, k, steps=None, tau=None, choose=None, drafting=None, **settings):
  """Static (`steps`) or threshold (`tau`) decoding, or FreeDave over it where it drafts."""
  exit_at, order = settings.get("exit", "never"), settings.get("order", "confidence")
  shifted, mode = settings.get("shifted", False), settings.get("mode", "tree")
  attention = "block_causal" if cache == "block" else "full"
  plan = schedule.threshold(tau) if steps is None else schedule.static(steps)
  draw = sampling.greedy() if choose is None else choose

  def build(lm, limits):
    forwarding = Forwarding(cache, shifted, mode)
    model = diffusion.Model(lm, draw, select.ORDERS[order], forwarding)
    cut = canvas.Canvas(limits, k, attention, MASK, exit_at)
    if drafting is None:
      return diffusion.make_sampler(model, cut, plan)
    return freedave.make_sampler(model, cut, plan, freedave.Drafting(*drafting))

  rules = diffusion_reference.Rules(
    MASK, EOS, k, attention, steps, tau, order,
    exit=exit_at, shifted=shifted, stores=cache == "block",
    **({} if choose is None else {"choose": _drawn(jax.vmap(choose)), "drawn": True}),
  )  # fmt: skip

  def reference(logits_fn, prompt, limit, key):
    args = (rules, logits_fn, prompt, limit, key)
    if drafting is None:
      return diffusion_reference.plain(*args).result()
    d, *modes = drafting
    if len(modes) == 3 and modes[2]:
      return diffusion_reference.freedave_carry(*args, d, frugal=modes[1]).result()
    return diffusion_reference.freedave(*args, d, *modes).result()

  return Case(
    name + ("" if choose is None else " drawn"),
    build,
    reference,
    fills_canvas=True,
    sees_limit=attention == "full",
    long=settings.get("long", False),
  )


def _filling(name, build, reference, drawn=True, long=False):
  """A sampler that fills its row in any order."""
  name = name + (" drawn" if drawn else "")
  return Case(name, build, reference, fills_canvas=True, sees_limit=True, long=long)


def _mdm(name, unmask, reference, choose=_WARM, **settings):
  return _filling(
    f"mdm {name}",
    lambda lm, limits: mdm.make_sampler(mdm.of_lm(lm), MASK, limits, choose, unmask),
    reference,
    **settings,
  )


def _ssmd(name, window, reference_window, n_inner, *, first_equal=False, **settings):
  def build(lm, limits):
    model = fill_reference.self_speculative(lm)
    log_probs = ssmd.log_probs(temperature=1.5)
    return ssmd.make_sampler(model, limits, window, n_inner, log_probs, first_equal=first_equal)

  reference = fill_reference.reference_speculative(
    MASK, fill_reference.softmax_at(1.5), reference_window, n_inner, first_equal
  )
  return _filling(f"ssmd {name} N={n_inner}", build, reference, **settings)


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


_FROM_TEXT = jacobi_drafts.from_text()

SAMPLERS = [
  Case(
    "ar",
    lambda lm, limits: ar.make_sampler(lm, limits, sampling.greedy()),
    reference_ar(_greedy),
  ),
  Case(
    "ar drawn",
    lambda lm, limits: ar.make_sampler(lm, limits, _NUCLEUS),
    reference_ar(_drawn(_NUCLEUS)),
    long=True,
  ),
  _sbd("eb_entropy", 4, 0.0, long=True),
  _sbd("eb_entropy", 4, 0.8),
  _sbd("eb_confidence", 16, 1.5, long=True),  # the block is longer than the limit
  _sbd("factor", 3, 1.5, long=True),
  _sbd("confidence_threshold", 5, 0.4, long=True),
  _sbd("top_k", 1, 2, long=True),  # blocks of one token
  _sbd("eb_entropy", 4, 0.8, choose=_WARM),
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
  _diffusion("static, block-causal", "block", 4, steps=3, long=True),
  _diffusion(
    "dynamic, shifted", "none", 3, tau=0.4, choose=_WARM, shifted=True, exit="eos", long=True
  ),
  _diffusion("freedave, eager", "block", 4, steps=4, drafting=(5, True), exit="block"),
  _diffusion(
    "freedave, carry", "block", 3, steps=3, drafting=(4, True, True, True), exit="eos", long=True
  ),
  _diffusion(
    "freedave, carry",
    "block",
    3,
    steps=3,
    choose=_WARM,
    drafting=(7, True, False, True),
    mode="batch",
    long=True,
  ),
  _diffusion(
    "freedave, full",
    "none",
    6,
    steps=4,
    choose=_WARM,
    drafting=(3,),
    order="random",
    mode="batch",
    long=True,
  ),
  _mdm(
    "ancestral, cosine",
    mdm.ancestral(5, corruption.MASK_SCHEDULES["cosine"]),
    fill_reference.reference_planned(
      MASK,
      _drawn(_WARM),
      fill_reference.ancestral_plan(5, lambda u: math.acos(1 - u) * 2 / math.pi),
    ),
    long=True,
  ),
  _mdm(
    "first hitting",
    mdm.first_hitting(2),
    fill_reference.reference_planned(MASK, _drawn(_WARM), fill_reference.ranked_plan(2)),
    long=True,
  ),
  _mdm(
    "top_k",
    mdm.by_rule(select.top_k(3)),
    fill_reference.reference_rule(MASK, _greedy, reveal.top_k, 3),
    choose=sampling.greedy(),
    drawn=False,
    long=True,
  ),
  _ssmd("cosine", windows.cosine(0.3), fill_reference.cosine_window(0.3), 2),
  _ssmd("full", windows.full(), lambda size: range(size, 0, -1), 1, long=True),
  _ssmd(
    "constant",
    windows.constant(5),
    lambda size: [5] * size,
    math.inf,
    first_equal=True,
    long=True,
  ),
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
