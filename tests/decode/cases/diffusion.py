"""Cases of the diffusion language models: static, dynamic and FreeDave decoding."""


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


CASES = [
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
]
