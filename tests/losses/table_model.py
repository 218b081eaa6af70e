"""A language model that is one lookup table, and the losses of the papers summed term by term.

What the table is asked depends on everything a prediction may depend on: the query's token and
position, and the set of (half, token, position) it sees. So a target, a position or one visible
key that is wrong gives another row of the table, hence another loss.
"""

import jax.numpy as jnp
import numpy as np

from sbdjax import masks
from sbdjax.lm import LM, suppress
from tests import models
from tests.reference import network
from tests.reference.visibility import runs_of

V, MASK = 7, 6
ROWS, MODULUS = 503, 97
_RNG = np.random.default_rng(0)
_KEY_CODE = _RNG.integers(1, MODULUS, (2, V, 64))  # of a visible key, by half, token, position
_QUERY_CODE = _RNG.integers(1, ROWS, (2, V, 64))
TABLE = _RNG.normal(size=(ROWS, V)).astype(np.float32)
PARAMS = {"table": jnp.asarray(TABLE)}


def make_lm(seen_masks=None, halves=2, clean=None):
  """The table as an LM. Appends every mask it is given to the list `seen_masks`.

  Args:
    halves: 2: the input is [clean; masked]; 1: one plain sequence.
    clean: tokens of the clean half, where the other is not as long.
  """

  def apply(params, tokens_BxT, *, positions_BxT, mask, cache=None, slots_BxT=None):
    del params, slots_BxT
    assert cache is None
    if seen_masks is not None:
      seen_masks.append(mask)
    count = tokens_BxT.shape[1]
    first = count // halves if clean is None else clean
    half_T = jnp.minimum(jnp.arange(count) // first, halves - 1)
    seen = masks.dense(mask, count, count).astype(jnp.int32)
    codes_BxT = jnp.asarray(_KEY_CODE)[half_T, tokens_BxT, positions_BxT]
    context_BxT = jnp.einsum(
      "bqs,bs->bq", jnp.broadcast_to(seen, (len(codes_BxT), *seen.shape[1:])), codes_BxT
    )
    own_BxT = jnp.asarray(_QUERY_CODE)[half_T, tokens_BxT, positions_BxT]
    row_BxT = (context_BxT % MODULUS * 5 + own_BxT) % ROWS
    return row_BxT[..., None].astype(jnp.float32), None

  def logits(params, hidden):
    return suppress(params["table"][hidden[..., 0].astype(jnp.int32)], MASK)

  config = models.config(vocab_size=V, mask_id=MASK)
  return LM(config, lambda key: PARAMS, apply, logits, None)


def table_row(context, query):
  """Row asked by `query` = (half, token, position) that sees the list `context` of such triples."""
  return (sum(_KEY_CODE[key] for key in context) % MODULUS * 5 + _QUERY_CODE[query]) % ROWS


def batch(rows=3, length=11, seed=0, documents=True):
  """Random tokens and target weights; other documents in each row, positions restart in each."""
  rng = np.random.default_rng(seed)
  segments = np.ones((rows, length), np.int32)
  if documents:
    segments = 1 + np.cumsum(rng.random((rows, length)) < 0.25, axis=1).astype(np.int32)
    segments[0, -2:] = 0  # padding
  runs = np.array([runs_of(row) for row in segments])
  positions = np.array([[i - list(row).index(row[i]) for i in range(length)] for row in runs])
  weights = rng.choice([0.0, 0.5, 1.0], (rows, length)).astype(np.float32)
  return {
    "tokens": rng.integers(0, MASK, (rows, length)).astype(np.int32),
    "weights": np.where(segments > 0, weights, 0).astype(np.float32),
    "positions": positions.astype(np.int32),
    "segment_ids": segments,
    "example_id": np.arange(10, 10 + rows, dtype=np.int32),
  }


def noise(batch, seed=0):
  """(noisy tokens, masked, eta): any noise will do for comparing sums."""
  rng = np.random.default_rng(seed)
  masked = rng.random(batch["tokens"].shape) < 0.6
  eta = rng.uniform(0.2, 1.0, len(masked)).astype(np.float32)
  return np.where(masked, MASK, batch["tokens"]).astype(np.int32), masked, eta


class Terms:
  """Sums -log p over targets, keeping also the gradient with respect to the table."""

  def __init__(self):
    self.loss, self.correct, self.weight = 0.0, 0.0, 0.0
    self.gradient = np.zeros(TABLE.shape)

  def add(self, context, query, target, weight, factor=1.0):
    row = table_row(context, query)
    logits = TABLE[row].astype(np.float64)
    logits[MASK] = -np.inf  # the mask token is never predicted
    log_p = network.log_softmax(logits)
    self.loss -= weight * factor * log_p[target]
    self.correct += weight * (np.argmax(logits) == target)
    self.weight += weight
    self.gradient[row] += weight * factor * (np.exp(log_p) - (np.arange(V) == target))


def naive_ntp(batch, document_mask=True):
  """Term 1 of equation 14, row by row, target by target."""
  terms = [Terms() for _ in batch["tokens"]]
  for b, row in enumerate(terms):
    x, pos, runs = batch["tokens"][b], batch["positions"][b], runs_of(batch["segment_ids"][b])
    for t in range(1, len(x)):
      if runs[t] == runs[t - 1]:
        past = [(0, x[s], pos[s]) for s in range(t) if not document_mask or runs[s] == runs[t]]
        row.add(past, (0, x[t - 1], pos[t - 1]), x[t], batch["weights"][b, t])
  return terms


def naive_masked(batch, noisy, masked, k, factors, document_mask=True):
  """Term 2 of equation 14: T = {1 + l k : l = 0 .. floor(L / k) - 1}, here counted from 0."""
  terms = [Terms() for _ in batch["tokens"]]
  for b, row in enumerate(terms):
    x, pos, runs = batch["tokens"][b], batch["positions"][b], runs_of(batch["segment_ids"][b])
    for t in range(0, len(x) // k * k, k):
      for i in range(t, t + k):
        if masked[b, i]:
          seen = [s for s in range(t + k) if not document_mask or runs[s] == runs[i]]
          past = [(0, x[s], pos[s]) for s in seen if s < t]
          block = [(1, noisy[b, s], pos[s]) for s in seen if s >= t]
          query = (1, noisy[b, i], pos[i])
          row.add(past + block, query, x[i], batch["weights"][b, i], factors[b])
  return terms


def total(terms, field):
  return sum(getattr(t, field) for t in terms)
