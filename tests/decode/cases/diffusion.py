"""Cases of the diffusion language models: static, dynamic and FreeDave decoding."""

import jax

from sbdjax.decode.diffusion.blocks import Blocks
from sbdjax.decode.diffusion.freedave import FreeDave
from sbdjax.decode.diffusion.network import BlockCache, Forwarding, NoCache
from sbdjax.decode.diffusion.predict import Predictor
from sbdjax.decode.diffusion.schedule import StaticSteps
from sbdjax.decode.diffusion.static import Dynamic, Static
from tests.decode import diffusion_reference
from tests.decode.cases.case import EOS, GREEDY, MASK, WARM, Case, drawn

_EXACT, _WHOLE = BlockCache(), NoCache()


def _parts(cache, block_size, exit_at=None, token=GREEDY, score="confidence", shifted=False):
  """The parts that all methods share, as keyword arguments."""
  attention = "block_causal" if cache == _EXACT else "full"
  blocks = Blocks(block_size, attention, early_exit=exit_at is not None)
  return {
    "blocks": blocks if exit_at is None else blocks.replace(exit_at=exit_at),
    "predictor": Predictor(token, score),
    "forwarding": Forwarding(cache, shifted),
  }


def _rules(method):
  """The settings of a method as the reference knows them."""
  blocks, token = method.blocks, method.predictor.token
  schedule = getattr(method, "schedule", method)
  return diffusion_reference.Rules(
    MASK,
    EOS,
    blocks.block_size,
    blocks.attention,
    steps=getattr(schedule, "steps_per_block", None),
    tau=getattr(schedule, "threshold", None),
    order=method.predictor.score,
    exit=blocks.exit_at if blocks.early_exit else "never",
    shifted=method.forwarding.shifted,
    stores=method.forwarding.cache == _EXACT,
    **({"choose": drawn(jax.vmap(token)), "drawn": True} if token.draws else {}),
  )


def _case(name, method, long=False):
  def reference(logits_fn, prompt, limit, key):
    args = (_rules(method), logits_fn, prompt, limit, key)
    if not isinstance(method, FreeDave):
      return diffusion_reference.plain(*args).result()
    d, skips = method.draft_steps, method.skip_known_forwards
    if method.reuse_verified_kv:
      return diffusion_reference.freedave_reusing(*args, d, skips).result()
    return diffusion_reference.freedave(*args, d, method.eager, skips).result()

  return Case(
    name + (" drawn" if method.predictor.token.draws else ""),
    method,
    reference,
    fills_canvas=True,
    sees_limit=method.blocks.attention == "full",
    long=long,
  )


CASES = [
  _case("static, block-causal", Static(3, **_parts(_EXACT, 4)), long=True),
  _case(
    "dynamic, shifted",
    Dynamic(0.4, **_parts(_WHOLE, 3, exit_at="eos", token=WARM, shifted=True)),
    long=True,
  ),
  _case(
    "freedave, eager",
    FreeDave(StaticSteps(4), draft_steps=5, eager=True, **_parts(_EXACT, 4, exit_at="block")),
  ),
  _case(
    "freedave, reusing keys",
    FreeDave(
      StaticSteps(2),
      draft_steps=4,
      eager=True,
      skip_known_forwards=True,
      reuse_verified_kv=True,
      **_parts(_EXACT, 3, exit_at="eos"),
    ),
    long=True,
  ),
  _case(
    "freedave, reusing keys",
    FreeDave(
      StaticSteps(3),
      draft_steps=7,
      draft_mode="batch",
      eager=True,
      reuse_verified_kv=True,
      **_parts(_EXACT, 3, token=WARM),
    ),
    long=True,
  ),
  _case(
    "freedave, full",
    FreeDave(
      StaticSteps(4),
      draft_steps=3,
      draft_mode="batch",
      **_parts(_WHOLE, 6, token=WARM, score="random"),
    ),
    long=True,
  ),
]
