"""Chunked cross-entropy: the same numbers as all at once, in memory that does not grow."""

import functools
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax.chunks import CHUNK, in_chunks
from sbdjax.lm import suppress
from sbdjax.losses.cross_entropy import token_nll
from tests.reference import network

ROOT = pathlib.Path(__file__).resolve().parents[2]
B, L, D, V, MASK = 2, 7, 5, 11, 4
_RNG = np.random.default_rng(0)
HIDDEN = _RNG.normal(size=(B, L, D)).astype(np.float32)
HEAD = _RNG.normal(size=(V, D)).astype(np.float32)
TARGETS = _RNG.choice(np.delete(np.arange(V), MASK), (B, L)).astype(np.int32)
WEIGHTS = _RNG.random((B, L)).astype(np.float32)


@functools.partial(jax.jit, static_argnames=("chunk", "mask_id"))
def run(hidden, head, targets, weights, *, chunk, mask_id=MASK):
  """(weighted sum, (nll, correct)) and its gradient for hidden and head."""

  def loss(hidden, head):
    logits_fn = lambda h: suppress(h @ head.T, mask_id)
    nll, correct = token_nll(logits_fn, hidden, targets, chunk=chunk)
    return jnp.sum(nll * weights), (nll, correct)

  return jax.value_and_grad(loss, (0, 1), has_aux=True)(hidden, head)


def test_unchunked_equals_numpy():
  (_, (nll, correct)), grads = run(HIDDEN, HEAD, TARGETS, WEIGHTS, chunk=CHUNK)
  logits = HIDDEN.astype(np.float64) @ HEAD.T.astype(np.float64)
  logits[..., MASK] = -np.inf
  log_p = network.log_softmax(logits)
  expected = -np.take_along_axis(log_p, TARGETS[..., None], axis=-1)[..., 0]
  np.testing.assert_allclose(nll, expected, atol=2e-6)
  np.testing.assert_array_equal(correct, logits.argmax(-1) == TARGETS)
  error = WEIGHTS[..., None] * (np.exp(log_p) - np.eye(V)[TARGETS])
  np.testing.assert_allclose(grads[0], error @ HEAD, atol=2e-6)
  np.testing.assert_allclose(grads[1], np.einsum("blv,bld->vd", error, HIDDEN), atol=5e-6)


@pytest.mark.parametrize("chunk", [1, 4, 13])
def test_chunks_change_nothing(chunk):
  """B L = 14 is a multiple of none of 4 and 13: the padding must not count."""
  whole, chunked = (run(HIDDEN, HEAD, TARGETS, WEIGHTS, chunk=c) for c in (CHUNK, chunk))
  for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(chunked), strict=True):
    np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


def test_without_a_mask_token_every_token_counts():
  (_, (nll, _)), _ = run(HIDDEN, HEAD, TARGETS, WEIGHTS, chunk=4, mask_id=None)
  log_p = network.log_softmax(HIDDEN.astype(np.float64) @ HEAD.T.astype(np.float64))
  expected = -np.take_along_axis(log_p, TARGETS[..., None], axis=-1)[..., 0]
  np.testing.assert_allclose(nll, expected, atol=2e-6)


def scratch_bytes(tokens, vocab, chunk=CHUNK, width=16):
  """Scratch memory of loss and gradient, from the compiler: nothing is run."""
  shapes = (
    jax.ShapeDtypeStruct((1, tokens, width), jnp.float32),
    jax.ShapeDtypeStruct((vocab, width), jnp.float32),
    jax.ShapeDtypeStruct((1, tokens), jnp.int32),
    jax.ShapeDtypeStruct((1, tokens), jnp.float32),
  )
  compiled = run.lower(*shapes, chunk=chunk).compile()
  return compiled.memory_analysis().temp_size_in_bytes


def test_peak_memory_does_not_grow_with_tokens_times_vocabulary(record_property):
  """At L = 4096 and V = 128k one array of all logits is 2.1 GB; backward needs several."""
  vocab = 131_072
  one_chunk = CHUNK * vocab * 4
  small, large = scratch_bytes(4096, vocab), scratch_bytes(16_384, vocab)
  whole = scratch_bytes(4096, vocab, chunk=4096)
  record_property("scratch_bytes_L4096_V131072", small)
  print(f"scratch at V=131072: L=4096 {small:,} bytes, L=16384 {large:,}; unchunked {whole:,}")
  assert small < 3.5 * one_chunk
  assert large - small < 0.02 * one_chunk
  assert small < 0.5 * whole


NEEDED = _RNG.random((B, L)) < 0.4


@pytest.mark.parametrize("chunk", [1, 4, 13, CHUNK])
def test_tokens_of_no_weight_are_left_out(chunk):
  """The same numbers and gradients; what has no weight is 0 in every chunk."""

  @jax.jit
  def some(hidden, head):
    logits_fn = lambda h: suppress(h @ head.T, MASK)
    nll, correct = token_nll(logits_fn, hidden, TARGETS, WEIGHTS * NEEDED, chunk=chunk)
    return jnp.sum(nll * WEIGHTS), (nll, correct)

  whole = run(HIDDEN, HEAD, TARGETS, WEIGHTS * NEEDED, chunk=CHUNK)
  found = jax.value_and_grad(some, (0, 1), has_aux=True)(HIDDEN, HEAD)
  expected = whole[0][0], jax.tree.map(lambda x: x * NEEDED, whole[0][1])
  for a, b in zip(jax.tree.leaves((expected, whole[1])), jax.tree.leaves(found), strict=True):
    np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("few", [0, 3, 4, 5, 14])
def test_chunks_that_nobody_needs_do_not_run(few):
  """Fourteen tokens in chunks of four: as many run as hold the needed ones, backward as well."""
  ran = []
  needed = np.zeros(B * L, bool)
  needed[np.random.default_rng(few).permutation(B * L)[:few]] = True

  def fn(hidden):
    jax.debug.callback(lambda: ran.append(1))
    return jnp.sum(hidden**2, axis=-1)

  def total(hidden):
    return jnp.sum(in_chunks(fn, 4, hidden, needed_BxL=needed.reshape(B, L)))

  np.testing.assert_allclose(
    jax.grad(total)(HIDDEN), 2 * HIDDEN * needed.reshape(B, L)[..., None], rtol=1e-6
  )
  jax.effects_barrier()
  assert len(ran) == 2 * -(-few // 4)  # forward, and made again in the backward pass


@pytest.mark.long
def test_on_a_mesh_tokens_stay_with_their_rows():
  """Two fake devices with a row each: the same numbers, and no hidden state crosses."""
  flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
  env = os.environ | {"JAX_PLATFORMS": "cpu", "NPROC": "16", "XLA_FLAGS": flags.strip()}
  command = [sys.executable, "-m", "tests.losses.mesh_worker"]
  subprocess.run(command, cwd=ROOT, env=env, check=True, timeout=300)
