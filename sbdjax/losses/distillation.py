"""Predictions trained towards those of a teacher, a chunk of tokens at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from sbdjax import reductions
from sbdjax.chunks import CHUNK, in_chunks
from sbdjax.losses.cross_entropy import nll_of

LogitsFn = Callable[[jax.Array], jax.Array]


class Divergence(NamedTuple):
  """How far a student is from its teacher, each at temperature T; float32, nats.

  Attributes:
    kl: KL(teacher || student) T^2, whose gradient does not shrink with T.
    entropy: the teacher's times T^2: `kl` plus this is the soft cross-entropy, which has the same
      gradient.
    same: bool, both have the same argmax.
  """

  kl: jax.Array
  entropy: jax.Array
  same: jax.Array


def divergence(student_nxV: jax.Array, teacher_nxV: jax.Array, temperature: float) -> Divergence:
  """Of float32 logits; no gradient reaches the teacher."""
  teacher_nxV = jax.lax.stop_gradient(teacher_nxV)
  log_q = jax.nn.log_softmax(student_nxV / temperature, axis=-1)
  log_p = jax.nn.log_softmax(teacher_nxV / temperature, axis=-1)
  p = jnp.exp(log_p)
  entropy = -jnp.sum(p * log_p, axis=-1)
  kl = -jnp.sum(p * log_q, axis=-1) - entropy
  same = reductions.argmax(student_nxV) == reductions.argmax(teacher_nxV)
  return Divergence(kl * temperature**2, entropy * temperature**2, same)


def token_kl(
  logits_fn: LogitsFn,
  student_BxMxD: jax.Array,
  teacher_BxMxD: jax.Array,
  weights_BxM: jax.Array | None = None,
  *,
  temperature: float,
  chunk: int = CHUNK,
  teacher_logits_fn: LogitsFn | None = None,
) -> Divergence:
  """The divergence of each position, [B, M]; 0 at positions of weight 0.

  Args:
    logits_fn: hidden [n, D] -> float32 logits [n, V], the mask token left out (`LM.logits`).
    student_BxMxD, teacher_BxMxD: final hidden states.
    weights_BxM: None: all count.
    temperature: T.
    chunk: tokens whose logits exist at one time.
    teacher_logits_fn: of another model; None: the student's.
  """
  of_teacher = teacher_logits_fn or logits_fn

  def one(student_nxD: jax.Array, teacher_nxD: jax.Array) -> Divergence:
    return divergence(logits_fn(student_nxD), of_teacher(teacher_nxD), temperature)

  needed = None if weights_BxM is None else weights_BxM != 0
  return in_chunks(one, chunk, student_BxMxD, teacher_BxMxD, needed_BxL=needed)


def token_nll_and_kl(
  logits_fn: LogitsFn,
  student_BxMxD: jax.Array,
  targets_BxM: jax.Array,
  teacher_BxMxD: jax.Array,
  weights_BxM: jax.Array,
  *,
  temperature: float,
  chunk: int = CHUNK,
) -> tuple[jax.Array, jax.Array, Divergence]:
  """`token_nll` and `token_kl` of the same predictions, whose logits are made once.

  Returns:
    nll float32 [B, M], correct bool [B, M], and the divergence.
  """

  def one(
    student_nxD: jax.Array, targets_n: jax.Array, teacher_nxD: jax.Array
  ) -> tuple[jax.Array, jax.Array, Divergence]:
    student = logits_fn(student_nxD)
    found = divergence(student, logits_fn(teacher_nxD), temperature)
    return *nll_of(student, targets_n), found

  arrays = (student_BxMxD, targets_BxM, teacher_BxMxD)
  return in_chunks(one, chunk, *arrays, needed_BxL=weights_BxM != 0)
