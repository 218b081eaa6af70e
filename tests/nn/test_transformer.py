"""The network against float64 numpy; its masks, cache, dtypes, token dropout and remat."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax import cache as kv_cache
from sbdjax import masks
from sbdjax.errors import UsageError
from sbdjax.lm import make_lm, suppress
from sbdjax.nn.rope import RopeScaling
from sbdjax.nn.sigma import HeadConfig
from sbdjax.nn.transformer import REMAT_POLICIES
from sbdjax.sigma_lm import make_sigma_lm
from tests import models
from tests.reference import network, visibility

B, T = 2, 9
LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=16)


@functools.cache
def compiled(lm):
  """Logits of uncached forwards, compiled once a configuration and mask structure."""

  @jax.jit
  def run(params, tokens, positions, mask):
    hidden, _ = lm.apply(params, tokens, positions_BxT=positions, mask=mask)
    return lm.logits(params, hidden)

  return run


def logits_of(lm, params, tokens, mask, positions=None):
  positions = models.positions(*tokens.shape) if positions is None else positions
  return np.asarray(compiled(lm)(params, tokens, positions, mask))


BIASES = dict(qkv_bias=True, o_bias=True, mlp_bias=True)
VARIANTS = {
  "llama2c": dict(rope_interleaved=True),
  "llama": dict(tie_embeddings=False, rope_scaling=RopeScaling(**LLAMA3), head_dim=8),
  "multi_query": dict(num_kv_heads=1, num_heads=3, head_dim=4, num_layers=1),
  "qwen2": dict(qkv_bias=True, rope_theta=1e6, norm_eps=1e-6),
  "qwen3": dict(qk_norm=True, head_dim=6, num_heads=4, d_model=10, tie_embeddings=False),
  "llama_biases": dict(qkv_bias=True, o_bias=True, mlp_bias=True),
  "gpt2": dict(
    norm="layer", mlp="gelu_tanh", positions="learned", head_dim=5, max_seq_len=16, **BIASES
  ),
  "esm": dict(norm="layer", mlp="gelu", mlm_head=True, norm_eps=1e-3, **BIASES),
  "bert": dict(
    norm="layer",
    mlp="gelu",
    mlm_head=True,
    positions="learned",
    norm_order="post",
    embedding_norm=True,
    **BIASES,
  ),
  "post_norm_llama": dict(norm_order="post"),
  "half_precision_rotations": dict(rope_frequencies=(1.0, 0.0371)),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_forward_equals_numpy(name):
  lm = models.lm_of(**VARIANTS[name])
  params = models.random_params(lm)
  tokens = models.tokens(B, T)
  positions = models.positions(B, T) + np.array([[0], [5]], np.int32)
  ours = logits_of(lm, params, tokens, masks.Causal(), positions)
  assert ours.shape == (B, T, lm.config.vocab_size) and ours.dtype == np.float32
  for row in range(B):
    expected = network.forward(lm.config, params, tokens[row], positions[row], visibility.causal(T))
    np.testing.assert_allclose(ours[row], expected, atol=2e-5)


def test_a_table_cut_by_padding_never_predicts_it():
  lm = models.lm_of(unused_rows=3, mask_id=9)
  params = models.random_params(lm)
  tokens = models.tokens(B, T, vocab_size=10)
  ours = logits_of(lm, params, tokens, masks.Causal())
  whole = logits_of(models.lm_of(), params, tokens, masks.Causal())
  np.testing.assert_array_equal(ours[..., :9], whole[..., :9])
  assert (np.asarray(jax.nn.softmax(ours))[..., 9:] == 0).all()


# --- what may depend on what ---------------------------------------------------------------------

DOCUMENTS = np.array([1, 1, 1, 1, 2, 2, 2, 2, 0], np.int32)
RUNS = visibility.runs_of(DOCUMENTS)


def documents():
  return masks.document_bounds(jnp.asarray(DOCUMENTS)[None])


MASKS = {
  "causal": (lambda: masks.Causal(documents()), visibility.causal(T, RUNS)),
  "open_block": (
    lambda: masks.OpenBlock(jnp.array([4]), jnp.array([7])),
    visibility.open_block(T, 4, 7),
  ),
  "sbd_train": (lambda: masks.SBDTrain(3, documents()), visibility.sbd_train(T, 3, RUNS)),
}


@pytest.fixture(scope="module")
def jacobian():
  """(tokens, mask) -> [T, V]: how strongly hidden t depends on the embedding of each token id."""
  lm = models.lm_of(vocab_size=2 * T, tie_embeddings=False)
  params = models.random_params(lm)
  direction = np.random.default_rng(3).normal(size=lm.config.d_model)

  @jax.jit
  def run(tokens, positions, mask):
    def project(embedding):
      hidden, _ = lm.apply(
        {**params, "embedding": embedding}, tokens, positions_BxT=positions, mask=mask
      )
      return hidden[0] @ direction

    return jnp.linalg.norm(jax.jacrev(project)(params["embedding"]), axis=-1)

  return run


@pytest.mark.parametrize("name", MASKS)
def test_outputs_depend_on_exactly_what_the_mask_shows(jacobian, name):
  """Two layers: a leak through an intermediate position would show as well."""
  make, visible = MASKS[name]
  n = visible.shape[0]
  tokens = np.random.default_rng(1).permutation(2 * T)[:n]  # all distinct: a token is a position
  positions = np.arange(n, dtype=np.int32) % T
  strength = np.asarray(jacobian(tokens[None], positions[None], make()))[:, tokens]
  # A position depends on itself through the residual; it need not see itself.
  np.testing.assert_array_equal(strength > 1e-7, visible | np.eye(n, dtype=bool))


# --- cache ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny():
  lm = models.lm_of(rope_interleaved=True)
  return lm, models.random_params(lm)


def test_scratch_beyond_learned_positions_stays_finite():
  """Drafts may lie beyond the context: a NaN among their keys would spread to every query."""
  lm = models.lm_of(positions="learned", max_seq_len=6)
  params = models.random_params(lm)
  cache, zero = lm.init_cache(B, T), jnp.zeros(B, jnp.int32)
  where = models.positions(B, T)
  got, cache = cached_step(lm, T)(params, cache, models.tokens(B, T), where, zero, where)
  expected = logits_of(lm, params, models.tokens(B, T)[:, :6], masks.Causal())
  np.testing.assert_allclose(got[:, :6], expected, atol=2e-5)
  assert np.isfinite(got).all() and np.isfinite(cache.v).all()


@functools.cache
def cached_step(lm, num_causal):
  @jax.jit
  def run(params, cache, tokens, positions, start, slots):
    mask = masks.Cached(cache.length_B, start, num_causal)
    hidden, cache = lm.apply(
      params, tokens, positions_BxT=positions, mask=mask, cache=cache, slots_BxT=slots
    )
    return lm.logits(params, hidden), cache

  return run


@pytest.mark.parametrize(
  ("widths", "changes"),
  [
    *((widths, dict(rope_interleaved=True)) for widths in [(9,), (1,) * 9, (4, 3, 2)]),
    ((4, 3, 2), VARIANTS["bert"]),
  ],
)
def test_a_cached_forward_in_pieces_equals_one_uncached_forward(widths, changes):
  lm = models.lm_of(**changes)
  params = models.random_params(lm)
  tokens = models.tokens(B, T)
  expected = logits_of(lm, params, tokens, masks.Causal())
  cache, first = lm.init_cache(B, T), 0
  for width in widths:
    columns = slice(first, first + width)
    where = models.positions(B, T)[:, columns]
    step = cached_step(lm, width)
    zero = jnp.zeros(B, jnp.int32)
    got, cache = step(params, cache, tokens[:, columns], where, zero, where)
    np.testing.assert_allclose(got, expected[:, columns], atol=2e-5)
    np.testing.assert_array_equal(cache.length_B, first)  # only commit moves it
    cache = kv_cache.commit(cache, jnp.full(B, width))
    first += width


def test_rows_of_other_lengths_with_a_causal_part_and_an_open_block(tiny):
  """Row 0 has 5 tokens cached and brings 2 more; row 1 has 3 and brings none; then 2 open ones.

  The entries that are not valid hold garbage and must not matter.
  """
  lm, params = tiny
  known, pending = np.array([5, 3]), np.array([2, 0])
  tokens = models.tokens(B, T, seed=4)
  cache = lm.init_cache(B, T)
  _, cache = cached_step(lm, T)(
    params, cache, tokens, models.positions(B, T), jnp.zeros(B, jnp.int32), models.positions(B, T)
  )
  cache = kv_cache.commit(cache, jnp.asarray(known))
  where = (known + pending)[:, None] + np.arange(-2, 2)  # 2 causal columns, then 2 open ones
  new = np.take_along_axis(tokens, np.maximum(where, 0), axis=1)
  new[1, :2] = 12  # row 1 brings no causal token: whatever stands there is garbage
  stored = np.where(np.arange(4)[None] < 2, where, cache.capacity)
  stored[1] = cache.capacity
  got, after = cached_step(lm, 2)(
    params, cache, new, where.astype(np.int32), jnp.asarray(2 - pending), stored
  )
  for row in range(B):
    start = known[row] + pending[row]
    expected = network.forward(
      lm.config,
      params,
      tokens[row, : start + 2],
      np.arange(start + 2),
      visibility.open_block(start + 2, start, start + 2),
    )
    np.testing.assert_allclose(got[row, 2 - pending[row] :], expected[known[row] :], atol=2e-5)
  np.testing.assert_array_equal(after.k[:, 1], cache.k[:, 1])  # row 1 stored nothing
  np.testing.assert_array_equal(after.k[:, 0, :, :5], cache.k[:, 0, :, :5])
  np.testing.assert_allclose(after.k[:, 0, :, 5:7], cache.k[:, 0, :, 5:7], atol=2e-5)
  assert np.asarray(cache.k[:, 0, :, 5:7]).all()


# --- token dropout -------------------------------------------------------------------------------

ESM = dict(mask_id=12, pad_id=1, token_dropout=True, **VARIANTS["esm"])


def test_masks_enter_as_zeros_and_the_rest_makes_up_for_them():
  """Rows without, with some, with nothing but masks between the ends; and padded ones."""
  lm = models.lm_of(**ESM)
  params = models.random_params(lm)
  rows = [[0, 5, 6, 7, 8, 9, 4, 3, 2], [0, 12, 6, 12, 8, 9, 4, 12, 2], [0, *[12] * 7, 2]]
  rows += [[0, 12, 6, 7, 2, 1, 1, 1, 1], [0, 12, 12, 2, 1, 1, 1, 1, 1]]
  tokens = np.array(rows, np.int32)
  length = (tokens != 1).sum(axis=1)
  ours = logits_of(lm, params, tokens, masks.Full(jnp.asarray(length)))
  for row, n in enumerate(length):
    alone = network.forward(lm.config, params, tokens[row, :n], np.arange(n), np.ones((n, n), bool))
    np.testing.assert_allclose(ours[row, :n], alone, atol=3e-5)
  plain = models.lm_of(**VARIANTS["esm"])
  assert np.abs(logits_of(plain, params, tokens, masks.Full()) - ours)[0].max() > 0.01


def test_a_row_of_masks_or_padding_alone_stays_finite():
  lm = models.lm_of(**ESM)
  tokens = np.array([[12] * T, [1] * T], np.int32)
  assert np.isfinite(logits_of(lm, models.random_params(lm), tokens, masks.Full())).all()


def test_token_dropout_refuses_a_cache():
  lm = models.lm_of(**ESM)
  zero = jnp.zeros(B, jnp.int32)
  with pytest.raises(UsageError, match="cannot be decoded with a cache"):
    jax.eval_shape(
      lambda: lm.apply(
        models.random_params(lm),
        models.tokens(B, T),
        positions_BxT=models.positions(B, T),
        mask=masks.Cached(zero, zero, T),
        cache=lm.init_cache(B, T),
      )
    )


# --- dtypes --------------------------------------------------------------------------------------


def test_bfloat16_compute_keeps_float32_parameters_logits_and_gradients(tiny):
  exact, params = tiny
  lm = make_lm(dataclasses.replace(exact.config, compute_dtype="bfloat16"))
  tokens = models.tokens(B, T)
  hidden, cache = jax.eval_shape(
    lambda: lm.apply(
      params,
      tokens,
      positions_BxT=models.positions(B, T),
      mask=masks.Cached(jnp.zeros(B, jnp.int32), jnp.zeros(B, jnp.int32), T),
      cache=lm.init_cache(B, T),
    )
  )
  assert hidden.dtype == cache.k.dtype == jnp.bfloat16
  assert all(
    x.dtype == jnp.float32 for x in jax.tree.leaves(jax.eval_shape(lm.init, jax.random.key(0)))
  )
  ours = logits_of(lm, params, tokens, masks.Causal())
  expected = logits_of(exact, params, tokens, masks.Causal())
  assert ours.dtype == np.float32
  error = np.abs(ours - expected)
  assert 1e-4 < error.max() and error.mean() < 0.05 * np.abs(expected).mean()
  grads = jax.eval_shape(jax.grad(lambda p: logits_fn(lm, p, tokens).sum()), params)
  assert all(g.dtype == jnp.float32 for g in jax.tree.leaves(grads))


def logits_fn(lm, params, tokens):
  hidden, _ = lm.apply(
    params, tokens, positions_BxT=models.positions(*tokens.shape), mask=masks.Causal()
  )
  return lm.logits(params, hidden)


def test_bfloat16_parameters():
  lm = models.lm_of(param_dtype="bfloat16", compute_dtype="bfloat16", qkv_bias=True, qk_norm=True)
  params = jax.eval_shape(lm.init, jax.random.key(0))
  assert all(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(params))


def test_initial_parameters_are_stacked_finite_and_follow_the_key():
  lm = models.lm_of(qkv_bias=True, qk_norm=True, tie_embeddings=False)
  init = jax.jit(lm.init)
  a, b, again = init(jax.random.key(0)), init(jax.random.key(1)), init(jax.random.key(0))
  assert all(x.shape[0] == lm.config.num_layers for x in jax.tree.leaves(a["layers"]))
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(a))
  jax.tree.map(np.testing.assert_array_equal, a, again)
  kernel = lambda p: np.asarray(p["layers"]["attn"]["q_kernel"])
  assert (kernel(a) != kernel(b)).all()
  assert (kernel(a)[0] != kernel(a)[1]).all(), "layers must not start equal"


# --- rematerialisation ---------------------------------------------------------------------------


def residual_bytes(lm, params, tokens):
  """Bytes the backward pass is handed, the parameters themselves aside."""

  def pullback(p):
    return jax.vjp(lambda p: logits_fn(lm, p, tokens), p)[1]

  leaves = jax.tree.leaves(jax.eval_shape(pullback, params))
  sizes = sum(x.size * x.dtype.itemsize for x in leaves)
  return sizes - sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(params))


def remat_lms():
  return {name: models.lm_of(remat=name, num_layers=3) for name in REMAT_POLICIES}


def test_remat_keeps_less():
  lms, tokens = remat_lms(), models.tokens(B, T)
  params = jax.eval_shape(lms["none"].init, jax.random.key(0))
  kept = {name: residual_bytes(lm, params, tokens) for name, lm in lms.items()}
  assert kept["full"] < 0.5 * kept["dots"] and kept["dots"] < 0.8 * kept["none"], kept


@pytest.mark.long
def test_remat_changes_no_gradient():
  lms, tokens = remat_lms(), models.tokens(B, T)
  params = models.random_params(lms["none"])
  grads = {
    name: jax.jit(jax.grad(lambda p, lm=lm: (logits_fn(lm, p, tokens) ** 2).sum()))(params)
    for name, lm in lms.items()
  }
  for name in ("dots", "full"):
    for a, b in zip(*(jax.tree.leaves(grads[n]) for n in ("none", name)), strict=True):
      np.testing.assert_allclose(b, a, rtol=2e-4, atol=1e-4 * np.abs(a).max())


def test_full_remat_keeps_only_the_layers_inputs():
  """Doubling the depth adds one [B, T, D] activation a layer to what is kept, nothing else."""
  tokens = models.tokens(B, T)
  kept = []
  for layers in (2, 4):
    lm = models.lm_of(remat="full", num_layers=layers)
    kept.append(residual_bytes(lm, models.random_params(lm), tokens))
  assert kept[1] - kept[0] == 2 * B * T * models.SHAPE["d_model"] * 4


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    (dict(vocab_size=0), "vocab_size"),
    (dict(num_layers=0), "num_layers"),
    (dict(d_ff=-1), "d_ff"),
    (dict(num_kv_heads=3), "num_kv_heads=3"),
    (dict(d_model=14), "head_dim"),
    (dict(head_dim=5), "even"),
    (dict(head_dim=-2), "head_dim=-2"),
    (dict(max_seq_len=0), "max_seq_len"),
    (dict(rope_theta=0.0), "rope_theta"),
    (dict(norm_eps=-1e-5), "norm_eps"),
    (dict(mask_id=13), "vocabulary of 13"),
    (dict(mask_id=-1), "mask_id=-1"),
    (dict(mask_id=12, unused_rows=1), "vocabulary of 12"),
    (dict(unused_rows=13), "unused_rows=13"),
    (dict(rope_frequencies=(1.0,)), "2 pairs"),
    (dict(norm="batch"), "norm='batch'"),
    (dict(mlp="relu"), "mlp='relu'"),
    (dict(norm_order="sandwich"), "norm_order='sandwich'"),
    (dict(positions="alibi"), "positions='alibi'"),
    (dict(token_dropout=True), "mask_id"),
    (dict(pad_id=1), "pad_id"),
    (dict(pad_id=13, mask_id=1, token_dropout=True), "pad_id=13"),
    (dict(head_dim=0, d_model=2, positions="learned"), "head_dim"),
    (dict(compute_dtype="float8"), "compute_dtype='float8'"),
    (dict(param_dtype="int8"), "param_dtype='int8'"),
    (dict(remat="some"), "dots"),
    (dict(rope_scaling=dict(LLAMA3, factor=0.0)), "rope_scaling"),
  ],
)
def test_senseless_settings_are_refused_in_one_line(changes, words):
  with pytest.raises(UsageError) as error:
    models.config(**changes)
  assert words in str(error.value) and "\n" not in str(error.value)


def test_head_dim_and_rope_scaling_are_resolved_and_the_config_is_hashable():
  c = models.config(rope_scaling=LLAMA3)
  assert (c.head_dim, c.rope_scaling) == (4, RopeScaling(**LLAMA3))
  assert hash(c) == hash(models.config(rope_scaling=RopeScaling(**LLAMA3)))
  assert dataclasses.replace(c, num_layers=1).head_dim == c.head_dim


def test_suppress_takes_exactly_one_token_out():
  logits = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 5)), jnp.float32)
  probs = np.asarray(jax.nn.softmax(suppress(logits, 2)))
  others = np.delete(np.asarray(logits, np.float64), 2, axis=-1)
  assert not probs[..., 2].any()
  np.testing.assert_allclose(np.delete(probs, 2, axis=-1), network.softmax(others), rtol=1e-5)
  assert suppress(logits, None) is logits


@pytest.mark.parametrize("head", [None, HeadConfig()], ids=["lm", "sigma_lm"])
def test_logits_leave_the_mask_token_out_and_nothing_else(head):
  """However much the network wants it; its output row gets no gradient."""
  config = models.config(mask_id=4, tie_embeddings=False)
  lm = make_lm(config) if head is None else make_sigma_lm(config, head)
  params = models.random_params(lm)
  hidden = np.random.default_rng(0).normal(size=(2, 3, 16)).astype(np.float32)
  trunk = lambda params: params if head is None else params["trunk"]

  def loss(params):
    logits = lm.logits(params, hidden)
    return jnp.sum(jax.nn.log_softmax(logits)[..., 5]), logits

  (_, logits), gradient = jax.value_and_grad(loss, has_aux=True)(params)
  trunk(params)["head"] = trunk(params)["head"].at[4].multiply(1e6)
  np.testing.assert_array_equal(lm.logits(params, hidden), logits)
  assert not np.asarray(jax.nn.softmax(logits))[..., 4].any()
  assert np.delete(np.asarray(logits), 4, axis=-1).min() > -1e3
  rows = np.abs(np.asarray(trunk(gradient)["head"])).max(axis=1)
  assert rows[4] == 0 and (np.delete(rows, 4) > 0).all()
