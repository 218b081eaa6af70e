"""The SBD loss against equations 13 and 14 summed term by term, and against leaks by gradient."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax import masks
from sbdjax.errors import UsageError
from sbdjax.losses import ntp, sbd
from tests import models
from tests.jit import quick_jit
from tests.losses import table_model
from tests.losses.table_model import MASK, naive_masked, naive_ntp, total

NAIVE_FACTORS = {
  "sum": lambda eta, masked, targets: 1.0,
  "mean": lambda eta, masked, targets: targets / masked if masked else 0.0,
  "inverse_eta": lambda eta, masked, targets: 1.0 / eta,
}


def naive(batch, noise, k, normalisation="sum", document_mask=True):
  """(next-token terms, masked terms), each a list over rows."""
  noisy, masked, eta = noise
  ntp_terms = naive_ntp(batch, document_mask)
  plain = naive_masked(batch, noisy, masked, k, np.ones(len(eta)), document_mask)
  rows = zip(eta, (t.weight for t in plain), (t.weight for t in ntp_terms), strict=True)
  factors = [NAIVE_FACTORS[normalisation](*row) for row in rows]
  return ntp_terms, naive_masked(batch, noisy, masked, k, factors, document_mask)


def value_and_grad(config, lm=None):
  """(params, batch, noise, k) -> ((loss, (weight, metrics)), gradient), compiled once."""
  loss_on = functools.partial(sbd.loss_on, config)
  lm = table_model.make_lm() if lm is None else lm

  @chex.assert_max_traces(1)
  def run(params, batch, noise, k):
    loss, weight, metrics = loss_on(lm, params, batch, *noise, k)
    return loss, (weight, metrics)

  return jax.jit(jax.value_and_grad(run, has_aux=True))


@pytest.mark.parametrize(
  ("normalisation", "document_mask"),
  [
    *((name, True) for name in sbd.NORMALISATIONS),
    ("sum", False),
    *(
      pytest.param(name, False, marks=pytest.mark.long)
      for name in sbd.NORMALISATIONS
      if name != "sum"
    ),
  ],
)
def test_equals_equation_14_term_by_term(normalisation, document_mask):
  """One compilation, every block size: 1, sizes that do not divide 11, all of it, and more."""
  config = sbd.SBDLoss(
    1,
    16,
    ntp_weight=0.7,
    masked_weight=1.5,
    normalisation=normalisation,
    document_mask=document_mask,
    chunk=8,
  )
  run = value_and_grad(config)
  batch = table_model.batch()
  noise = table_model.noise(batch)
  for k in (1, 2, 3, 4, 5, 11, 16):
    (loss, (weight, metrics)), grads = run(table_model.PARAMS, batch, noise, k)
    first, second = naive(batch, noise, k, normalisation, document_mask)
    expected = 0.7 * total(first, "loss") + 1.5 * total(second, "loss")
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    gradient = 0.7 * total(first, "gradient") + 1.5 * total(second, "gradient")
    np.testing.assert_allclose(grads["table"], gradient, atol=5e-6)
    np.testing.assert_allclose(weight, total(first, "weight"), rtol=1e-6)
    plain = naive(batch, noise, k, "sum", document_mask)[1]
    for name, terms in (("ntp", first), ("masked", plain)):
      count = total(terms, "weight")
      for metric, field in (("loss", "loss"), ("accuracy", "correct")):
        np.testing.assert_allclose(
          metrics[f"{name}_{metric}"], (total(terms, field), count), rtol=1e-6, err_msg=metric
        )


def test_the_last_partial_block_carries_no_masked_term():
  """k = 4, L = 11: positions 8, 9 and 10 are in no whole block, so their weights do not matter."""
  batch = table_model.batch(documents=False)
  noise = table_model.noise(batch)
  run = value_and_grad(sbd.SBDLoss(ntp_weight=0.0))
  changed = {**batch, "weights": batch["weights"].copy()}
  changed["weights"][:, 8:] += 3.0
  moved = {**batch, "weights": batch["weights"].copy()}
  moved["weights"][:, 7] += 3.0
  losses = [float(run(table_model.PARAMS, b, noise, 4)[0][0]) for b in (batch, changed, moved)]
  assert noise[1][:, 7:].any(axis=0).all()
  assert losses[0] == losses[1] != losses[2]


def test_ntp_weight_zero_reports_the_term_and_trains_only_the_masked_one():
  batch = table_model.batch()
  noise = table_model.noise(batch)
  (loss, (_, metrics)), grads = value_and_grad(sbd.SBDLoss(ntp_weight=0.0))(
    table_model.PARAMS, batch, noise, 3
  )
  first, second = naive(batch, noise, 3)
  np.testing.assert_allclose(loss, total(second, "loss"), rtol=1e-6)
  np.testing.assert_allclose(grads["table"], total(second, "gradient"), atol=2e-6)
  np.testing.assert_allclose(metrics["ntp_loss"][0], total(first, "loss"), rtol=1e-6)
  assert np.abs(total(first, "gradient")).max() > 0.1


def test_masked_weight_zero_is_the_next_token_loss():
  batch = table_model.batch()
  noise = table_model.noise(batch)
  (loss, (weight, _)), grads = value_and_grad(sbd.SBDLoss(masked_weight=0.0))(
    table_model.PARAMS, batch, noise, 3
  )
  plain = functools.partial(ntp.NTPLoss(), table_model.make_lm(halves=1))
  expected = quick_jit(plain)(table_model.PARAMS, batch, jax.random.key(0))
  np.testing.assert_allclose((loss, weight), expected[:2], rtol=1e-6)
  np.testing.assert_allclose(grads["table"], total(naive_ntp(batch), "gradient"), atol=2e-6)


def test_a_row_without_targets_adds_nothing():
  """Also where a row's terms are divided by how many it has."""
  batch = table_model.batch()
  noise = table_model.noise(batch)
  batch["weights"][1] = 0.0
  keep = np.array([0, 2])
  rest = {name: value[keep] for name, value in batch.items()}
  loss_on = functools.partial(sbd.loss_on, sbd.SBDLoss(normalisation="mean"))
  run = jax.jit(lambda b, noise: loss_on(table_model.make_lm(), table_model.PARAMS, b, *noise, 3))
  whole, part = run(batch, noise), run(rest, tuple(x[keep] for x in noise))
  np.testing.assert_allclose(whole[:2], part[:2], rtol=1e-6)


# --- randomness ----------------------------------------------------------------------------------


def test_one_trace_serves_all_block_sizes_which_are_uniform_and_inclusive():
  seen = []
  lm = table_model.make_lm(seen)
  loss_fn = sbd.SBDLoss(2, 5)
  batch = table_model.batch()

  @jax.jit
  @chex.assert_max_traces(1)
  def run(key):
    loss, _, _ = loss_fn(lm, table_model.PARAMS, batch, key)
    assert seen[-1].max_block_size == 5
    return loss, seen[-1].block_size

  draws = [run(jax.random.key(i)) for i in range(200)]
  counts = np.bincount([int(k) for _, k in draws], minlength=7)
  assert counts[:2].sum() == counts[6:].sum() == 0
  chi_square = ((counts[2:6] - 50) ** 2 / 50).sum()
  assert chi_square < 16.3  # 0.1 % of a chi-square with 3 degrees of freedom
  assert len({float(loss) for loss, _ in draws}) > 190


def test_a_rows_noise_depends_on_its_example_id_alone():
  """The sum over a batch is the sum over its rows, each run alone; so is any reordering's."""
  lm, loss_fn = table_model.make_lm(), sbd.SBDLoss()
  batch = table_model.batch()
  run = jax.jit(lambda batch: loss_fn(lm, table_model.PARAMS, batch, jax.random.key(3)))
  pick = lambda rows: {name: value[rows] for name, value in batch.items()}
  whole, _, metrics = run(batch)
  reordered = run(pick([2, 0, 1]))
  alone = [run(pick([i])) for i in range(3)]
  np.testing.assert_allclose(reordered[0], whole, rtol=1e-6)
  np.testing.assert_allclose(sum(x[0] for x in alone), whole, rtol=1e-6)
  counts = [float(x[2]["masked_loss"][1]) for x in alone]
  assert sum(counts) == float(metrics["masked_loss"][1]) and len(set(counts)) > 1
  other = {**batch, "example_id": batch["example_id"] + 100}
  assert float(run(other)[2]["masked_loss"][1]) != float(metrics["masked_loss"][1]) or (
    float(run(other)[0]) != float(whole)
  )


def drawn_noise(loss_fn, batch):
  """(what the loss returns, the noisy half it made) under one key."""
  lm = table_model.make_lm()

  # The batch is no constant: XLA would compute with it while it compiles.
  @jax.jit
  def run(batch, key):
    seen = []

    def spy(params, tokens, **kwargs):
      seen.append(tokens)
      return lm.apply(params, tokens, **kwargs)

    return loss_fn(lm._replace(apply=spy), table_model.PARAMS, batch, key), seen[0]

  result, tokens = run(batch, jax.random.key(0))
  clean, noisy = np.split(np.asarray(tokens), 2, axis=1)
  np.testing.assert_array_equal(clean, batch["tokens"])
  np.testing.assert_array_equal(np.where(noisy == MASK, clean, noisy), clean)
  return result, noisy == MASK


def test_the_noise_the_loss_draws_is_that_of_equation_13():
  """Masked exactly where it is counted, half of the tokens on average."""
  batch = table_model.batch(rows=200, length=16, documents=False)
  batch["weights"] = np.ones_like(batch["weights"])
  (_, weight, metrics), masked = drawn_noise(sbd.SBDLoss(4, 4), batch)
  assert int(metrics["masked_loss"][1]) == masked.sum()
  assert int(weight) == 200 * 15
  assert abs(masked.mean() - 0.5) < 0.08  # eta ~ U(0, 1): 4 standard deviations over 200 rows


def test_a_share_of_the_sequences_is_masked_from_end_to_end():
  batch = table_model.batch(rows=400, length=16, documents=False)
  shares = {}
  for fraction in (0.0, 0.5, 1.0):
    _, masked = drawn_noise(sbd.SBDLoss(4, 4, full_mask_fraction=fraction), batch)
    shares[fraction] = masked.all(axis=1).mean()
  assert shares[0.0] < 0.12  # eta ~ U(0, 1): all 16 are masked with probability 1 / 17
  assert abs(shares[0.5] - (0.5 + 0.5 * shares[0.0])) < 0.1
  assert shares[1.0] == 1


# --- leaks ---------------------------------------------------------------------------------------

L, K = 8, 3


@pytest.fixture(scope="module")
def sensitivity():
  """(ntp_weight, masked_weight) -> [L, 2L]: how the loss of target p depends on each input.

  Clean tokens are 0..L-1 and noisy ones L..2L-1, all distinct, and the head is untied: the
  gradient with respect to a row of the embedding is that with respect to one input position.
  """
  lm = models.lm_of(vocab_size=2 * L + 1, mask_id=2 * L, tie_embeddings=False)
  params = models.random_params(lm)
  base = {
    "tokens": np.arange(L, dtype=np.int32)[None],
    "positions": models.positions(1, L),
    "example_id": np.zeros(1, np.int32),
  }
  noise = (np.arange(L, 2 * L, dtype=np.int32)[None], np.ones((1, L), bool), np.ones(1, np.float32))

  @functools.cache
  def compiled(weights):
    loss_on = functools.partial(sbd.loss_on, sbd.SBDLoss(1, 4, *weights))

    def loss(embedding, target_weights_L, segments):
      batch = {**base, "weights": target_weights_L[None], "segment_ids": segments[None]}
      return loss_on(lm, {**params, "embedding": embedding}, batch, *noise, jnp.int32(K))[0]

    def strength(target_weights_L, segments):
      gradient = jax.grad(loss)(params["embedding"], target_weights_L, segments)
      return jnp.linalg.norm(gradient, axis=-1)

    return jax.jit(jax.vmap(strength, (0, None)))

  def run(weights, segments):
    each_target = np.eye(L, dtype=np.float32)
    return np.asarray(compiled(weights)(each_target, segments))[:, : 2 * L] > 1e-7

  return run


@pytest.mark.parametrize("segments", [[1] * L, [1, 1, 1, 1, 2, 2, 2, 2]], ids=["one", "packed"])
def test_the_clean_half_depends_on_its_past_alone(sensitivity, segments):
  depends = sensitivity((1.0, 0.0), np.array(segments))
  for p in range(L):
    expected = np.zeros(2 * L, bool)
    if p > 0 and segments[p] == segments[p - 1]:
      expected[segments.index(segments[p]) : p] = True
    np.testing.assert_array_equal(depends[p], expected, err_msg=f"target {p}")


@pytest.mark.parametrize("segments", [[1] * L, [1, 1, 1, 1, 2, 2, 2, 2]], ids=["one", "packed"])
def test_a_masked_block_depends_on_earlier_clean_blocks_and_itself(sensitivity, segments):
  depends = sensitivity((0.0, 1.0), np.array(segments))
  for p in range(L):
    start = p // K * K
    expected = np.zeros(2 * L, bool)
    if start + K <= L:
      same = np.array(segments) == segments[p]
      expected[:start] = same[:start]
      expected[L + start : L + start + K] = same[start : start + K]
    np.testing.assert_array_equal(depends[p], expected, err_msg=f"target {p}")


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  "settings",
  [
    dict(block_size_min=0),
    dict(block_size_min=5, block_size_max=4),
    dict(ntp_weight=-1.0),
    dict(masked_weight=-0.5),
    dict(normalisation="average"),
    dict(chunk=0),
    dict(full_mask_fraction=1.5),
    dict(full_mask_fraction=-0.1),
  ],
)
def test_senseless_settings_are_refused_in_one_line(settings):
  with pytest.raises(UsageError, match="loss") as error:
    sbd.SBDLoss(**settings)
  assert "\n" not in str(error.value)


def test_a_model_without_a_mask_token_is_refused():
  lm = table_model.make_lm()
  lm = lm._replace(config=models.config(mask_id=None))
  with pytest.raises(UsageError, match="mask"):
    sbd.SBDLoss()(lm, table_model.PARAMS, table_model.batch(), jax.random.key(0))


def test_the_next_token_half_can_be_tied_to_a_frozen_model():
  """KL(frozen || model) at every target, from two forwards of the plain text."""
  lm = models.lm_of(vocab_size=table_model.V, mask_id=MASK)
  params, frozen = (models.random_params(lm, seed) for seed in (0, 1))
  batch = table_model.batch()
  config = sbd.SBDLoss(2, 4, masked_weight=0.0, ntp_teacher="frozen")
  key = jax.random.key(0)
  tied = quick_jit(functools.partial(config, lm))
  loss, weight, metrics = tied(params, batch, key, frozen)

  @quick_jit
  def log_probs(p):
    mask = masks.Causal(ntp.documents(batch, True))
    hidden, _ = lm.apply(p, batch["tokens"], positions_BxT=batch["positions"], mask=mask)
    return jax.nn.log_softmax(lm.logits(p, hidden), axis=-1)

  log_q, log_p = log_probs(params), log_probs(frozen)
  kl = np.sum(np.exp(log_p) * (log_p - log_q), axis=-1)
  expected = np.sum(kl * ntp.shifted(batch)[1])
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  np.testing.assert_allclose(metrics["ntp_kl"], (expected, weight), rtol=1e-5)
  labels = config.evaluated()
  assert not labels.distils and config.distils
  assert labels.block_size_min == labels.block_size_max == config.block_size_max
  plain = quick_jit(functools.partial(labels, lm))(params, batch, key)
  np.testing.assert_allclose(plain[2]["ntp_loss"][0], metrics["ntp_loss"][0], rtol=1e-6)
  assert abs(float(tied(params, batch, key, params)[0])) < 1e-4
  with pytest.raises(UsageError, match="loss.name=sbd learns from a teacher"):
    config(lm, params, batch, key)
