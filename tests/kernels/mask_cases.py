"""Every mask rule over a few of the kernels' tiles, with the visibility the papers define."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from sbdjax import masks
from tests.reference import visibility

# Tiles hold 128: these are two, the second of few rows.
L = 141
HALF = 70


class Case(NamedTuple):
  """A rule, its numbers of queries and keys, and what it shows: bool [2, T, S]."""

  name: str
  rule: Any
  num_queries: int
  num_keys: int
  visible: np.ndarray


def _segments(length):
  """Two documents and padding in the first row, three in the second."""
  at = np.arange(length)
  first = np.where(at < length // 3, 1, np.where(at < length - 9, 2, 0))
  second = np.where(at < 5, 1, np.where(at < length // 2, 2, 1))
  return np.stack([first, second]).astype(np.int32)


def _documents(length):
  segments = _segments(length)
  return masks.document_bounds(jnp.asarray(segments)), [visibility.runs_of(r) for r in segments]


def _training():
  """Rules over texts: T = S."""
  docs, runs = _documents(L)
  yield "causal", masks.Causal(), L, [visibility.causal(L)]
  yield "causal_documents", masks.Causal(docs), L, [visibility.causal(L, r) for r in runs]
  yield "full", masks.Full(), L, [visibility.full(L, L, L)]
  valid = (0, 130)  # the first row sees nothing at all
  yield "full_lengths", masks.Full(jnp.array(valid)), L, [visibility.full(L, L, v) for v in valid]
  expected = [visibility.block_causal(L, 5, r) for r in runs]
  yield "block_causal", masks.BlockCausal(5, docs), L, expected
  bounds = ((135, 139), (0, 5))
  opened = masks.OpenBlock(*(jnp.array(x) for x in zip(*bounds, strict=True)))
  yield "open_block", opened, L, [visibility.open_block(L, b, e) for b, e in bounds]

  texts = [[(90, None), (20, 0), (31, 0)], [(30, None), (60, 0), (11, None), (40, 2)]]
  fields = [jnp.asarray(x) for x in visibility.shared_arrays(texts)]
  expected = [visibility.shared_beginnings(0, 0, x) for x in texts]
  yield "shared", masks.SharedBeginnings(*fields), L, expected

  docs, runs = _documents(HALF)
  for k in (5, 16):
    expected = [visibility.sbd_train(HALF, k)]
    yield f"sbd_{k}", masks.SBDTrain(jnp.int32(k)), 2 * HALF, expected
  expected = [visibility.sbd_train(HALF, 3, r) for r in runs]
  yield "sbd_documents", masks.SBDTrain(3, docs), 2 * HALF, expected
  expected = [visibility.block_diffusion_train(HALF, 7, r) for r in runs]
  yield "block_diffusion", masks.BlockDiffusionTrain(7, docs), 2 * HALF, expected

  clean, noisy, starts = 80, 60, (0, 20)
  of = lambda context: [visibility.jacobi_train(clean, noisy, 6, s, context) for s in starts]
  start = jnp.array(starts)
  rule = masks.JacobiTrain(start, 6, noisy)
  yield "jacobi_noisy", rule, clean + noisy, of(visibility.noisy_context)
  rule = masks.JacobiTrain(start, 6, noisy, 2)
  yield "jacobi_window", rule, clean + noisy, of(visibility.noisy_window(2))
  rule = masks.JacobiTrainCleanWindow(start, 6, noisy, 2)
  yield "jacobi_clean_window", rule, clean + noisy, of(visibility.clean_window(2))


def _decoding():
  """Rules over [cache | new tokens]: (name, rule, new tokens, cache slots, visible)."""
  committed, first = (0, 150), (0, 1)
  lengths = jnp.array(committed), jnp.array(first)
  for new, num_causal in ((1, 1), (5, 2), (16, 0), (70, 70)):
    starts = first if new > 1 else (0, 0)
    rule = masks.Cached(lengths[0], jnp.array(starts), num_causal)
    rows = [
      visibility.cached(150, new, n, f, num_causal) for n, f in zip(committed, starts, strict=True)
    ]
    yield f"cached_{new}_{num_causal}", rule, new, 150, rows
  rows = ((0, -1, 5), (149, 149, 154))
  drafts = masks.Branches(*(jnp.array(x) for x in zip(*rows, strict=True)), branches=2, lead=1)
  expected = [visibility.branches(150, 2, 6, *row, 1, None) for row in rows]
  yield "branches", drafts, 12, 150, expected
  trees = ((7, (0, 1, 2, 0), (-1, -1, -1, 0)), (150, (1, 2, 0, 1), (-1, -1, -1, -1)))
  tree = masks.DraftTree(*(jnp.array(x) for x in zip(*trees, strict=True)), 3, (1, 1, 4, 2), 4)
  expected = [visibility.draft_tree(150, n, 3, (1, 1, 4, 2), a, v, 4) for n, a, v in trees]
  yield "draft_tree", tree, 15, 150, expected
  texts = [[(40, None), (10, 0), (20, 0)], [(30, None), (40, 0)]]
  fields = [jnp.asarray(x) for x in visibility.shared_arrays(texts)]
  expected = [
    visibility.shared_beginnings(150, n, x) for n, x in zip(committed, texts, strict=True)
  ]
  rule = masks.SharedBeginnings(*fields, lengths[0])
  yield "shared_cached", rule, 70, 150, expected
  docs, runs = _documents(HALF)
  halves = [visibility.sbd_train(HALF, 5, r) for r in runs]
  clean, masked = masks.SBDTrain(5, docs).halves()
  expected = [visibility.in_cache(x[:HALF], HALF, 80, False) for x in halves]
  yield "sbd_clean", clean, HALF, 80, expected
  expected = [visibility.in_cache(x[HALF:], HALF, 80, True) for x in halves]
  yield "sbd_masked", masked, HALF, 80, expected
  start = (0, 20)
  rule = masks.JacobiTrainCleanWindow(jnp.array(start), 6, 60, 2)
  whole = [visibility.jacobi_train(80, 60, 6, s, visibility.clean_window(2)) for s in start]
  yield "jacobi_cached", rule, 60, 80, [x[80:] for x in whole]


def _case(name, rule, num_queries, num_keys, visible):
  return Case(name, rule, num_queries, num_keys, np.broadcast_to(visible, (2, *visible[0].shape)))


TRAINING = {n: _case(n, rule, t, t, seen) for n, rule, t, seen in _training()}
DECODING = {n: _case(n, rule, t, s + t, seen) for n, rule, t, s, seen in _decoding()}


def inputs(case, heads, kv_heads, head_dim, seed=0):
  """float32 q, k, v [2, ...], and what a gradient is weighted with."""
  rng = np.random.default_rng(seed)
  t, s = case.num_queries, case.num_keys
  shapes = ((heads, t), (kv_heads, s), (kv_heads, s), (heads, t))
  return tuple(rng.normal(size=(2, *shape, head_dim)).astype(np.float32) for shape in shapes)


def attention(q, k, v, visible, scale):
  """(output, log-sum-exp, probabilities [B, H, T, S]) in float64; zeros where nothing is seen."""
  q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
  group = q.shape[1] // k.shape[1]
  k, v = (np.repeat(x, group, axis=1) for x in (k, v))
  seen = visible[:, None]
  scores = np.where(seen, scale * (q @ k.swapaxes(2, 3)), -np.inf)
  top = np.max(scores, axis=-1, keepdims=True)
  weights = np.where(seen, np.exp(scores - np.where(np.isfinite(top), top, 0)), 0)
  total = weights.sum(-1, keepdims=True)
  probs = weights / np.where(total > 0, total, 1)
  with np.errstate(divide="ignore"):
    lse = (np.where(np.isfinite(top), top, 0) + np.log(total))[..., 0]
  return probs @ v, lse, probs


def gradients(q, k, v, w, visible, scale):
  """d sum(w * attention) / d(q, k, v) in float64."""
  q, k, v, w = (np.asarray(x, np.float64) for x in (q, k, v, w))
  batch, kv_heads, num_keys, head_dim = k.shape
  group = q.shape[1] // kv_heads
  probs = attention(q, k, v, visible, scale)[2]
  wide_k, wide_v = (np.repeat(x, group, axis=1) for x in (k, v))
  d_probs = w @ wide_v.swapaxes(2, 3)
  d_scores = scale * probs * (d_probs - np.sum(probs * d_probs, axis=-1, keepdims=True))
  over_group = lambda x: x.reshape(batch, kv_heads, group, num_keys, head_dim).sum(2)
  d_k, d_v = over_group(d_scores.swapaxes(2, 3) @ q), over_group(probs.swapaxes(2, 3) @ w)
  return d_scores @ wide_k, d_k, d_v
