"""The causal blocks against numpy, and what each of their outputs may depend on."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax import masks
from sbdjax.errors import UsageError
from sbdjax.nn import rope
from sbdjax.nn.sigma import HeadConfig, two_positions
from sbdjax.sigma_lm import in_order, make_sigma_lm
from tests import models
from tests.jit import quick_jit
from tests.nn.test_transformer import VARIANTS
from tests.reference import network

L, MASK = 7, 12
SIGMA = np.array([3, 0, 6, 2, 5, 1, 4], np.int32)
REVEALED = 2  # columns of SIGMA


PAPER = HeadConfig()
ABLATED = HeadConfig(2, output_residual=False, key_positions="next")


@functools.cache
def sigma_lm(head=PAPER, **changes):
  """One model a setting, so that it is compiled once."""
  lm = make_sigma_lm(models.config(mask_id=MASK, **changes), head)
  names = ("init", "trunk", "target")
  return lm._replace(**{name: quick_jit(getattr(lm, name)) for name in names})


def example(lm):
  """Random parameters, tokens in full and with the later ones in SIGMA hidden."""
  params = models.random_params(lm)
  tokens = models.tokens(2, L, vocab_size=MASK)
  noisy = tokens.copy()
  noisy[:, SIGMA[REVEALED:]] = MASK
  return params, tokens, noisy, np.stack([SIGMA, SIGMA])


def reference_target(lm, params, tokens_L, hidden_LxD, sigma_L):
  """Stream [L, D] in the order of sigma, float64, track by track as in Figure 1."""
  # Pre-norm blocks, whatever the trunk is.
  c = dataclasses.replace(lm.config, norm_order="pre")
  p = network.float64(params["head"])
  size = c.head_dim // 2
  freq = network.frequencies(size, c.rope_theta, None)
  following = np.append(sigma_L[1:], sigma_L[-1])

  def rotated(second):
    def turn(head_TxDh):
      halves = (head_TxDh[:, :size], sigma_L), (head_TxDh[:, size:], second)
      return np.hstack([network.rotate(x, at, freq, interleaved=True) for x, at in halves])

    return turn

  keys = sigma_L if lm.head.key_positions == "own" else following
  turns = rotated(following), rotated(keys)
  tracks = []
  for here, then in zip(sigma_L, following, strict=True):
    token = network.norm(
      c, p["token_norm"], network.float64(params["trunk"])["embedding"][tokens_L[here]]
    )
    streams = [network.norm(c, p["stream_norm"], hidden_LxD[at]) for at in (here, then)]
    tracks.append(np.concatenate([token, *streams]) @ p["mix_kernel"])
  x = np.stack(tracks)
  for n in range(lm.head.num_layers):
    x = network.layer(c, network.nth(p["layers"], n), x, turns, np.tri(L, dtype=bool))
  x = network.norm(c, p["out_norm"], x) @ p["out_kernel"]
  out = np.empty_like(x)
  out[0] = hidden_LxD[sigma_L[0]]
  for d in range(1, L):
    out[d] = x[d - 1] + (hidden_LxD[sigma_L[d]] if lm.head.output_residual else 0.0)
  return out


@pytest.mark.parametrize(
  ("head", "changes"),
  [
    (PAPER, {}),
    (ABLATED, dict(norm="layer", mlp="gelu", qkv_bias=True)),
    (PAPER, VARIANTS["bert"]),
  ],
  ids=["paper", "ablations, as ESM-2", "on BERT"],
)
def test_drafts_and_targets_match_numpy(head, changes):
  lm = sigma_lm(head, **changes)
  params, tokens, noisy, sigma = example(lm)
  hidden = lm.trunk(params, noisy)
  target = lm.target(params, tokens, hidden, sigma)
  for row in range(2):
    stream = network.stream(
      lm.config, params["trunk"], noisy[row], np.arange(L), np.ones((L, L), bool)
    )
    np.testing.assert_allclose(hidden[row], stream, rtol=2e-4, atol=2e-4)
    expected = reference_target(lm, params, tokens[row], stream, sigma[row])
    np.testing.assert_allclose(target[row], expected, rtol=5e-4, atol=5e-4)
    logits = network.logits_of(lm.config, params["trunk"], expected)
    np.testing.assert_allclose(lm.logits(params, target[row]), logits, rtol=1e-3, atol=1e-3)


def test_a_new_model_accepts_every_draft():
  lm = sigma_lm()
  params = lm.init(jax.random.key(0))
  _, tokens, noisy, sigma = example(lm)
  hidden = lm.trunk(params, noisy)
  target = lm.target(params, tokens, hidden, sigma)
  np.testing.assert_array_equal(target, in_order(hidden, sigma))
  assert np.abs(target).max() > 0.1


def test_a_new_model_without_residual_starts_with_its_own_predictions():
  lm = sigma_lm(ABLATED, norm="layer", mlp="gelu", qkv_bias=True)
  assert np.std(lm.init(jax.random.key(0))["head"]["out_kernel"]) > 0.1


def test_a_column_knows_the_tokens_before_it_in_the_order_and_no_others():
  """By gradient: each place holds a token of its own, whose embedding row is that place alone."""
  lm = make_sigma_lm(models.config(mask_id=MASK, tie_embeddings=False), PAPER)
  params = models.random_params(lm)
  tokens = np.arange(L, dtype=np.int32)[None]
  noisy, sigma = tokens.copy(), SIGMA[None]
  noisy[:, SIGMA[REVEALED:]] = MASK

  def logits(embedding):
    p = {**params, "trunk": {**params["trunk"], "embedding": embedding}}
    hidden = lm.trunk(p, noisy)
    both = jnp.concatenate([in_order(hidden, sigma), lm.target(p, tokens, hidden, sigma)])
    # A weighted sum, so that no gradient cancels.
    return jnp.einsum("kdv,v->kd", lm.logits(p, both), jnp.cos(jnp.arange(13.0)))

  gradient = quick_jit(jax.jacobian(logits))(params["trunk"]["embedding"])
  depends = np.asarray(
    jnp.any(gradient[:, :, :L] != 0, axis=-1)
  )  # [draft or target, column, place]
  revealed = np.isin(np.arange(L), SIGMA[:REVEALED])
  for d in range(L):
    np.testing.assert_array_equal(depends[0, d], revealed, err_msg=f"draft {d}")
    before = revealed | np.isin(np.arange(L), SIGMA[:d])
    expected = before if d else revealed
    np.testing.assert_array_equal(depends[1, d], expected, err_msg=f"target {d}")


def test_the_order_of_what_comes_later_does_not_matter():
  """A window of one token gives the target that the whole sequence gives."""
  lm = sigma_lm()
  params, tokens, noisy, sigma = example(lm)
  hidden = lm.trunk(params, noisy)
  whole = lm.target(params, tokens, hidden, sigma)
  for d in range(1, L):
    other, drafts = sigma.copy(), tokens.copy()
    other[:, d + 1 :] = other[:, d + 1 :][:, ::-1]
    drafts[:, sigma[0, d:]] = 0
    part = lm.target(params, drafts, hidden, other)
    np.testing.assert_allclose(part[:, : d + 1], whole[:, : d + 1], rtol=1e-4, atol=1e-5)


def test_the_first_hidden_column_can_be_given_the_draft():
  lm = sigma_lm()
  params, tokens, noisy, sigma = example(lm)
  hidden = lm.trunk(params, noisy)
  own = lm.target(params, tokens, hidden, sigma)
  given = lm.target(params, tokens, hidden, sigma, equal_at_B=np.array([REVEALED, 5]))
  expected = np.array(own)
  expected[0, REVEALED], expected[1, 5] = hidden[0, SIGMA[REVEALED]], hidden[1, SIGMA[5]]
  np.testing.assert_array_equal(given, expected)
  assert np.abs(expected - own).max() > 0.1


def test_padding_changes_nothing():
  lm = sigma_lm()
  params, tokens, noisy, _ = example(lm)
  order, length = np.array([[2, 0, 4, 1, 3]], np.int32), 5
  lengths = np.array([length, length])

  def both(rest):
    padded = [np.where(np.arange(L) < length, x, rest).astype(np.int32) for x in (noisy, tokens)]
    sigma = np.concatenate([np.tile(order, (2, 1)), [[5, 6], [6, 5]]], axis=1).astype(np.int32)
    hidden = lm.trunk(params, padded[0], length_B=lengths)
    target = lm.target(params, padded[1], hidden, sigma)
    return hidden[:, :length], target[:, :length]

  for a, b in zip(both(0), both(3), strict=True):
    np.testing.assert_array_equal(a, b)


def test_on_a_pretrained_trunk_drafts_are_its_own_predictions():
  """ESM-2's kind of network, which counts masks and padding by their tokens."""
  changes = dict(
    norm="layer", mlp="gelu", qkv_bias=True, o_bias=True, mlp_bias=True, mlm_head=True,
    token_dropout=True, pad_id=1, num_kv_heads=4,
  )  # fmt: skip
  lm, plain = sigma_lm(**changes), models.lm_of(mask_id=MASK, **changes)
  params, _, noisy, _ = example(lm)
  lengths = np.array([L, 5])
  padded = np.where(np.arange(L) < lengths[:, None], noisy, 1).astype(np.int32)
  rest = np.where(np.arange(L) < lengths[:, None], noisy, 4).astype(np.int32)
  hidden = lm.trunk(params, rest, length_B=lengths)
  run = quick_jit(
    lambda p, x, mask: plain.apply(p, x, positions_BxT=models.positions(2, L), mask=mask)[0]
  )
  own = plain.logits(
    params["trunk"], run(params["trunk"], padded, masks.Full(jnp.asarray(lengths)))
  )
  drafts = lm.logits(params, hidden)
  for row, length in enumerate(lengths):
    np.testing.assert_allclose(drafts[row, :length], own[row, :length], rtol=1e-4, atol=1e-4)


def test_a_text_of_one_token_has_its_draft_for_target():
  lm = sigma_lm()
  params, _, _, _ = example(lm)
  hidden = lm.trunk(params, np.array([[MASK]], np.int32))
  target = lm.target(params, np.array([[3]], np.int32), hidden, np.array([[0]], np.int32))
  np.testing.assert_array_equal(target, hidden)


def test_half_the_channels_turn_with_each_position():
  """Scores depend on how far apart the two positions are, each by itself."""
  rng = np.random.default_rng(0)
  q, k = (jnp.asarray(rng.normal(size=(1, 1, L, 16)), jnp.float32) for _ in range(2))
  here, then = rng.permutation(L), rng.permutation(L)

  def scores(here, then):
    turn = two_positions(jnp.asarray(here[None]), jnp.asarray(then[None]), 16, 100.0)
    q_turned, k_turned = (rope.rotate(x, turn, True) for x in (q, k))
    return q_turned[0, 0] @ k_turned[0, 0].T

  first, second = jnp.arange(16) < 8, jnp.arange(16) >= 8
  plain = scores(here, then)
  np.testing.assert_allclose(scores(here + 5, then - 3), plain, atol=1e-4)
  assert np.abs(scores(here * 2, then) - plain).max() > 0.1
  assert np.abs(scores(here, then * 2) - plain).max() > 0.1
  turn = two_positions(jnp.asarray(here[None]), jnp.zeros((1, L), jnp.int32), 16, 100.0)
  moved = rope.rotate(q, turn, True)
  np.testing.assert_array_equal(moved[..., second], q[..., second])
  assert np.abs(moved - q)[..., first].max() > 0.1


@pytest.mark.parametrize(
  ("changes", "match"),
  [(dict(mask_id=None), "mask_id"), (dict(mask_id=MASK, head_dim=6), "head_dim=6")],
)
def test_a_trunk_that_cannot_carry_the_blocks_is_refused(changes, match):
  with pytest.raises(UsageError, match=match):
    make_sigma_lm(models.config(**changes), PAPER)


@pytest.mark.parametrize("field", [dict(num_layers=0), dict(key_positions="here")])
def test_senseless_heads_are_refused(field):
  with pytest.raises(UsageError, match=f"head.{next(iter(field))}"):
    HeadConfig(**field)
