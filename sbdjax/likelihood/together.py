"""Self-speculation and masked diffusion by its trunk, of a text in the same orders, from the same passes.

The L passes that `ssmd.totals` needs of an order hold what the trunk alone says of every token after any number
of them, so also log p(x | plan) of masked diffusion in steps, for every plan that reveals along that order. In
a plan of the ancestral sampler the steps of single positions are independent and of one law: given how
many are revealed in each step, their order is uniformly random. So a random order, with the plan's steps sorted along
it, is a random plan. The two samplers are then compared on the same orders, and numbers of steps cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sbdjax.likelihood import elbo, ssmd
from sbdjax.likelihood.elbo import PlanTotals
from sbdjax.sigma_lm import SigmaLM

# (key, hidden bool [L]) -> the step of each position, int32 [L]; see `decode.any_order.mdm.Unmask`.
Plan = Callable[[jax.Array, jax.Array], jax.Array]


def along_order(
  log_draft_DxD: jax.Array, step_D: jax.Array, start: jax.Array | int = 0
) -> PlanTotals:
  """log p(x | plan) and its forwards, of a plan that reveals along the order of the passes.

  Args:
    log_draft_DxD: see `ssmd.exact`.
    step_D: int32, the step in which the token at each place of the order is revealed; from `start` on
      it never falls, and what stands before is not read.
    start: how many tokens are given.
  """
  at_D = jnp.arange(step_D.shape[0])
  hidden_D = at_D >= start
  step_D = jnp.where(hidden_D, step_D, jnp.iinfo(jnp.int32).min)
  first_D = jnp.searchsorted(step_D, step_D, side="left")
  log_p_D = jnp.where(hidden_D, log_draft_DxD[first_D, at_D], 0.0)
  return PlanTotals(jnp.sum(log_p_D), jnp.sum(hidden_D & (first_D == at_D)))


def one_text(
  model: SigmaLM,
  params: Any,
  tokens_L: ArrayLike,
  key: jax.Array,
  rules: Sequence[tuple[ArrayLike, float]],
  plans: Sequence[Plan],
  *,
  num_orders: int,
  plans_per_order: int,
  given_L: ArrayLike,
  **settings: Any,
) -> tuple[ssmd.Totals, PlanTotals]:
  """A text under both samplers: [orders, rules], and [orders, kinds of plans, plans_per_order].

  Args:
    tokens_L: int32, the text.
    rules: (window_D, n_inner) each; see `ssmd.totals`.
    plans: kinds of plans, such as `Ancestral(16, "cosine").plan`.
    given_L: bool, places that are known beforehand; they come first in every order.
    settings: of `elbo.pass_log_probs`.
  """
  tokens_L, given_L = jnp.asarray(tokens_L), jnp.asarray(given_L)
  window_RxD = jnp.asarray([window for window, _ in rules])
  n_inner_R = jnp.asarray([n_inner for _, n_inner in rules], jnp.float32)
  most = ssmd.most_of(rules)
  start, hidden_L = jnp.sum(given_L), ~given_L

  def one(key):
    order_key, plan_key = jax.random.split(key)
    sigma_L = elbo.random_order(order_key, given_L)
    passes = elbo.pass_log_probs(model, params, tokens_L, sigma_L, **settings)
    total = lambda window_D, n: ssmd.totals(*passes, window_D, n, start=start, most_inner=most)
    by_rule = jax.vmap(total)

    def by_plan(plan, key):
      # What is given comes first in the order, and first when steps are sorted.
      step_L = jnp.where(hidden_L, plan(key, hidden_L), jnp.iinfo(jnp.int32).min)
      return along_order(passes[0], jnp.sort(step_L), start)

    keys = jax.random.split(plan_key, (len(plans), plans_per_order))
    kinds = [
      jax.vmap(lambda key, plan=plan: by_plan(plan, key))(some)
      for plan, some in zip(plans, keys, strict=True)
    ]
    return by_rule(window_RxD, n_inner_R), jax.tree.map(lambda *x: jnp.stack(x), *kinds)

  return jax.lax.map(one, jax.random.split(key, num_orders))
