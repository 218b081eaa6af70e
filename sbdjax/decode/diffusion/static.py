"""Static and dynamic decoding of diffusion language models (FreeDave paper, Algorithm 1).

Block by block: a forward predicts every masked position, the schedule says which predictions to
keep, until no mask is left. `schedule.static` reveals a fixed number of positions a step,
`schedule.threshold` all that are sure enough (the paper's dynamic sampling). Under an exact cache
a finished block is run once more to enter it; `nfe` counts that forward, as the public code does.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from sbdjax.decode import base
from sbdjax.decode import canvas as cv
from sbdjax.decode.base import Sampler
from sbdjax.decode.canvas import Canvas, CanvasState
from sbdjax.decode.forward import Forwarding, Network, make_network
from sbdjax.decode.predict import Predict, make_predict
from sbdjax.decode.sampling import Choose
from sbdjax.decode.schedule import Schedule
from sbdjax.decode.select import Order, by_score, confidence
from sbdjax.errors import UsageError
from sbdjax.lm import LM


@dataclasses.dataclass(frozen=True)
class Model:
  """A diffusion model and how its predictions become tokens.

  Attributes:
    lm: the network.
    choose: token choice.
    order: what positions of a block are ranked by.
    forwarding: cache, shift, draft mode and guidance.
    suppress: tokens that are never chosen, beside the mask token.
  """

  lm: LM
  choose: Choose
  order: Order = by_score(confidence)
  forwarding: Forwarding = Forwarding()
  suppress: tuple[int, ...] = ()

  def predict(self, canvas: Canvas) -> Predict:
    return make_predict(self.choose, self.order, (canvas.mask_id, *self.suppress))


def mask_token(lm: LM) -> int:
  """The mask token of `lm`. Raises UsageError where it has none."""
  if lm.config.mask_id is None:
    raise UsageError("this checkpoint has no mask token: it cannot be decoded by diffusion")
  return lm.config.mask_id


def count_forward(state: CanvasState, width_B: jax.Array) -> CanvasState:
  """One more forward of every row, over `width_B` tokens."""
  out = state.out
  return state.replace(
    out=out.replace(nfe_B=out.nfe_B + 1, query_tokens_B=out.query_tokens_B + width_B)
  )


def keep_done(old, new, cache):
  """`new` with finished rows as they were in `old`; the cache knows which rows it wrote."""
  bare = lambda state: state.replace(cache=None)
  return base.keep_done(old.out.done_B, bare(old), bare(new)).replace(cache=cache)


def starter(canvas: Canvas, network: Network):
  """A sampler's `init`, giving a CanvasState."""

  def init(params, prompt_BxP, prompt_len_B, key) -> CanvasState:
    state = cv.start(canvas, prompt_BxP, prompt_len_B, key)
    return network.prefill(params, state, prompt_BxP.shape[1])

  return init


def make_sampler(model: Model, canvas: Canvas, schedule: Schedule) -> Sampler:
  """Algorithm 1: one step of `schedule` a forward."""
  network = make_network(model.lm, canvas, model.forwarding, num_blocks=1)
  predict = model.predict(canvas)

  def step(params, state: CanvasState) -> CanvasState:
    window = cv.window(canvas, state, 1)
    masked_BxW = cv.masked(canvas, window, window.tokens_BxW)
    active_B, storing_B = ~state.out.done_B, ~jnp.any(masked_BxW, axis=1)
    drafts = window.tokens_BxW[:, None]
    logits, cache = network.run(params, state, window, drafts, storing_B & active_B, active_B)
    prediction = predict(logits, state.key_B, window.position_BxW)
    prediction = jax.tree.map(lambda x: x[:, 0], prediction)
    now_BxW = schedule.steps(prediction, masked_BxW, window.maskable_BxN) == 0
    tokens_BxW = jnp.where(now_BxW, prediction.token, window.tokens_BxW)
    new = count_forward(state, network.width(state)).replace(opened_B=jnp.ones_like(active_B))
    new = cv.commit(canvas, new, window, tokens_BxW)
    # Without an exact cache a finished block needs no forward of its own.
    most_B = storing_B.astype(jnp.int32) if network.stores else jnp.ones_like(new.start_B)
    return keep_done(state, cv.close_blocks(canvas, new, window, tokens_BxW, most_B), cache)

  return Sampler(starter(canvas, network), step, lambda state: state.out.done_B)
