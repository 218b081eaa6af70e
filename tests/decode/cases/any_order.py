"""Cases of the samplers that fill a row in any order: masked diffusion, self-speculation."""


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


CASES = [
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
]
