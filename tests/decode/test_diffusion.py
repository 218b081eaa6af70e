"""Static and threshold decoding over each cache, guidance, and what a sampler refuses."""

import jax
import numpy as np
import pytest
from sbdjax.decode.forward import Forwarding

from sbdjax.decode import base, canvas, diffusion, freedave, sampling, schedule, select
from sbdjax.errors import UsageError
from tests import models
from tests.decode import diffusion_reference as reference
from tests.jit import quick_jit
from tests.reference import network

VOCAB, MASK, EOS, MAX_TOKENS = 13, 12, (3, 7), 9
LM = models.lm_of(vocab_size=VOCAB, mask_id=MASK, tie_embeddings=False)
PARAMS = models.random_params(LM, seed=3)
PARAMS["head"] = 0.5 * PARAMS["head"]
PROMPTS = np.array([[1, 2, 5, 4, 0], [4, 8, 9, 10, 1], [2, 0, 0, 0, 0], [9, 3, 6, 0, 0]], np.int32)
LENGTHS, LIMITS = np.array([4, 5, 1, 3], np.int32), np.array([9, 7, 4, 8], np.int32)


def build(
  cache, block, attention, steps=None, tau=None, exits="never", drafting=None, **forwarding
):
  cut = canvas.Canvas(base.Limits(MAX_TOKENS, EOS, LIMITS), block, attention, MASK, exits)
  order = select.by_score(select.confidence)
  model = diffusion.Model(LM, sampling.greedy(), order, Forwarding(cache, **forwarding), (0,))
  plan = schedule.static(steps) if tau is None else schedule.threshold(tau)
  if drafting is None:
    return diffusion.make_sampler(model, cut, plan)
  return freedave.make_sampler(model, cut, plan, drafting)


def decode(*args, **settings):
  sampler = build(*args, **settings)
  run = quick_jit(lambda *args: base.decode(sampler, *args).out)
  return jax.device_get(run(PARAMS, PROMPTS, LENGTHS, jax.random.key(0)))


def network_of(prompt_len, cfg_scale):
  """The network in numpy; with guidance, the same text is run again with its prompt masked."""

  def net(tokens, visible, positions=None):
    positions = np.arange(len(tokens)) if positions is None else positions
    run = lambda x: network.forward(LM.config, PARAMS, x, positions, visible)
    logits = run(tokens)
    if cfg_scale:
      bare = [MASK if p < prompt_len else x for x, p in zip(tokens, positions, strict=True)]
      unconditional = run(bare)
      logits = unconditional + (cfg_scale + 1) * (logits - unconditional)
    logits[:, [0, MASK]] = -1e30
    return logits

  return net


@pytest.mark.parametrize(
  ("cache", "block", "attention", "rest"),
  [
    ("dual", 4, "full", {"steps": 3, "shifted": True}),
    ("prefix", 3, "full", {"tau": 0.3, "exits": "eos"}),
    ("none", 4, "block_causal", {"steps": 4, "cfg_scale": 0.8, "shifted": True}),
  ],
)
def test_equals_numpy_without_a_cache(cache, block, attention, rest):
  out = decode(cache, block, attention, **rest)
  rules = reference.Rules(
    MASK, EOS, block, attention, rest.get("steps"), rest.get("tau"),
    exit=rest.get("exits", "never"), shifted=rest.get("shifted", False),
    frozen=cache if cache in ("prefix", "dual") else None,
  )  # fmt: skip
  for row in range(len(PROMPTS)):
    prompt = PROMPTS[row, : LENGTHS[row]].tolist()
    net = network_of(len(prompt), rest.get("cfg_scale", 0.0))
    expected = reference.plain(rules, net, prompt, LIMITS[row], jax.random.key(0)).result()
    span = slice(LENGTHS[row], out.length_B[row])
    found = (
      out.tokens_BxC[row, span].tolist(),
      out.nfe_B[row],
      out.reveal_step_BxC[row, span].tolist(),
    )
    assert found == expected, row


def test_an_exact_cache_changes_nothing_but_the_cost():
  settings = dict(steps=4, cfg_scale=0.8, shifted=True)
  cached = decode("block", 4, "block_causal", **settings)
  whole = decode("none", 4, "block_causal", **settings)
  for name in ("tokens_BxC", "reveal_step_BxC", "length_B", "text_end_B"):
    np.testing.assert_array_equal(getattr(cached, name), getattr(whole, name))
  # One forward more a block, and for a prompt that fills one; both passes of guidance count.
  end = -(-(LENGTHS + LIMITS) // 4) * 4
  num_blocks = end // 4 - LENGTHS // 4
  np.testing.assert_array_equal(whole.nfe_B, end - LENGTHS)
  np.testing.assert_array_equal(cached.nfe_B, whole.nfe_B + num_blocks)
  np.testing.assert_array_equal(cached.prefill_nfe_B, LENGTHS >= 4)
  np.testing.assert_array_equal(whole.query_tokens_B, 2 * end * whole.nfe_B)
  # The window, and the position before it, which predicts its first token.
  np.testing.assert_array_equal(cached.query_tokens_B, 2 * (4 + 1) * cached.nfe_B)


@pytest.mark.parametrize(
  ("args", "settings", "message"),
  [
    (("none", 0, "full"), {"steps": 1}, "block_size=0 must be at least 1"),
    (("none", 4, "causal"), {"steps": 1}, "attention='causal': choose one of full, block_causal"),
    (("prefix", 4, "block_causal"), {"steps": 1}, "cache=prefix does not fit attention=block_caus"),
    (("block", 4, "full"), {"steps": 1}, "cache=block does not fit attention=full"),
    (("cache", 4, "full"), {"steps": 1}, "cache='cache': choose one of none, block, prefix, dual"),
    (("none", 4, "full"), {"steps": 1, "exits": "eso"}, "early_exit='eso': choose one of never"),
    (("none", 4, "full"), {"steps": 1, "draft_mode": "row"}, "draft_mode='row': choose one of"),
    (("none", 4, "full"), {"steps": 1, "cfg_scale": -1.0}, "cfg_scale=-1.0 must not be negative"),
  ],
)
def test_settings_that_do_not_go_together(args, settings, message):
  with pytest.raises(UsageError, match=message) as error:
    build(*args, **settings)
  assert "\n" not in str(error.value)


def test_eager_needs_later_blocks_as_they_are():
  drafting = freedave.Drafting(4, eager=True)
  with pytest.raises(UsageError, match="eager acceptance looks at later blocks"):
    build("dual", 4, "full", steps=4, drafting=drafting)
  with pytest.raises(UsageError, match="draft_steps=0 must be at least 1"):
    freedave.Drafting(0)


def test_an_early_exit_needs_an_eos():
  with pytest.raises(UsageError, match="early_exit needs an EOS token"):
    canvas.Canvas(base.Limits(4), 4, "full", MASK, "block")


def test_a_model_without_mask_token_is_refused():
  with pytest.raises(UsageError, match="no mask token"):
    diffusion.mask_token(models.lm_of())
