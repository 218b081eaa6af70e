"""The exact likelihood against enumeration of all runs, and against published formulas."""

import functools
import json
import math
from typing import NamedTuple

import jax
import numpy as np
import pytest

from sbdjax.errors import UsageError
from sbdjax.likelihood import ssmd
from tests.helpers import golden_file
from tests.jit import quick_jit
from tests.likelihood import tables as tb

INF = math.inf
SETTINGS = [
  ((3, 2, 1), 1),
  ((3, 2, 1), 2),
  ((3, 2, 1), INF),
  ((1, 1, 1), 1),
  ((1, 2, 1), 1),
  ((2, 2, 1), 2),
  ((2, 9, 9), 1),  # cut at the end
]


class Found(NamedTuple):
  """An `Exact` and a `Totals`."""

  log_prob: jax.Array
  log_joint: jax.Array
  same_log_prob: jax.Array
  mean_counts: jax.Array


@pytest.fixture(autouse=True)
def _float64():
  with jax.enable_x64(True):
    yield


@functools.partial(quick_jit, static_argnames="counts")
def every_text(log_draft, log_target, window, n_inner, counts=ssmd.COUNTS, start=0):
  def run(p, q):
    args = (p, q, window, n_inner)
    exact, totals = ssmd.exact(*args, counts=counts, start=start), ssmd.totals(*args, start=start)
    return Found(*exact, *totals)

  return jax.vmap(run)(log_draft, log_target)


def of_tables(tables, window, n_inner, counts=ssmd.COUNTS):
  observed = np.stack([tb.observed(tables, x) for x in tb.texts(tables)], axis=1)
  return every_text(*observed, np.asarray(window), np.float64(n_inner), counts=counts, start=0)


def as_arrays(tables, mass):
  """Enumerated masses as [S**D, outer, rejections, passes]."""
  size = tables.length + 1
  out = np.zeros((tables.values**tables.length, size, size, size))
  for (x, *counts), p in mass.items():
    out[tb.context(x, tables.values), *counts] += p
  return out


def check(tables, window, n_inner, joint):
  got = of_tables(tables, window, n_inner)
  prob = joint.sum((1, 2, 3))
  assert got.log_prob.dtype == np.float64
  assert abs(prob.sum() - 1) < 1e-12
  np.testing.assert_allclose(np.exp(got.log_prob), prob, rtol=0, atol=1e-12)
  np.testing.assert_array_equal(got.same_log_prob, got.log_prob)
  np.testing.assert_allclose(np.exp(got.log_joint), joint, rtol=0, atol=1e-12)
  index = np.indices(joint.shape[1:]).reshape(3, -1)
  mean = joint.reshape(len(prob), -1) @ index.T / prob[:, None]
  np.testing.assert_allclose(got.mean_counts, mean, rtol=0, atol=1e-11)


@pytest.mark.parametrize("window, n_inner", SETTINGS)
def test_equals_enumeration_of_three_tokens(window, n_inner):
  tables = tb.random_tables(3, 3, seed=1)
  check(tables, window, n_inner, as_arrays(tables, tb.enumerate_runs(tables, window, n_inner)))


@pytest.mark.parametrize("window, n_inner", [((4, 3, 2, 1), 1), ((3, 2, 2, 1), 2)])
def test_equals_enumeration_of_four_tokens(window, n_inner):
  tables = tb.random_tables(4, 2, seed=2)
  check(tables, window, n_inner, as_arrays(tables, tb.enumerate_runs(tables, window, n_inner)))


@pytest.mark.parametrize("name", ["d3s3", "d4s2"])
def test_equals_reference_files(name):
  data = np.load(golden_file("ssmd_A.npz"))
  about = json.loads(golden_file("ssmd_A.json").read_text())
  tables = tb.Tables(data[f"{name}/P"], data[f"{name}/Q"])
  np.testing.assert_array_equal(tb.texts(tables), data[f"{name}/outputs"])
  settings = [s for s in about["settings"] if s["table"] == name]
  assert len(settings) >= 5
  for setting in settings:
    prefix = f"{name}/{setting['key']}"
    joint = np.zeros((tables.values**tables.length, *[tables.length + 1] * 3))
    for column, counts in enumerate(data[f"{prefix}/counts"]):
      joint[:, *counts] = data[f"{prefix}/joint"][:, column]
    np.testing.assert_allclose(joint.sum((1, 2, 3)), data[f"{prefix}/prob"], atol=1e-12)
    check(tables, data[f"{prefix}/window"], float(setting["N"]), joint)
    got = of_tables(tables, data[f"{prefix}/window"], float(setting["N"]))
    means = np.exp(got.log_prob) @ np.asarray(got.mean_counts)
    names = ("mean_outer", "mean_rejections", "mean_causal_passes")
    np.testing.assert_allclose(means, [setting[n] for n in names], atol=1e-11)


def test_without_windows_is_the_sum_of_proposition_31():
  """R(j) and p(x) as printed, in probabilities."""
  tables = tb.random_tables(4, 2, seed=3)
  got = of_tables(tables, (4, 3, 2, 1), 1)
  for number, x in enumerate(tb.texts(tables)):
    p, q = np.exp(tb.observed(tables, x))
    accept = lambda i, j: np.prod(np.minimum(p, q)[i, i:j])  # noqa: B023
    reject = lambda i, d: max(0.0, q[i, d] - p[i, d])  # noqa: B023
    rejected_at = [1.0]
    for j in range(1, 5):
      rejected_at.append(
        sum(rejected_at[i] * accept(i, j - 1) * reject(i, j - 1) for i in range(j))
      )
    total = rejected_at[4] + sum(rejected_at[i] * accept(i, 4) for i in range(4))
    assert abs(math.exp(got.log_prob[number]) - total) < 1e-14


def test_one_trunk_pass_samples_its_own_target_exactly():
  """N = inf without windows: the product of Q_0; windows of 1: the product of Q_i[i]."""
  tables = tb.random_tables(3, 3, seed=4)
  observed = np.stack([tb.observed(tables, x)[1] for x in tb.texts(tables)])
  got = of_tables(tables, (3, 2, 1), INF).log_prob
  np.testing.assert_allclose(got, observed[:, 0].sum(1), atol=1e-12)
  got = of_tables(tables, (1, 1, 1), 1).log_prob
  np.testing.assert_allclose(got, np.trace(observed, axis1=1, axis2=2), atol=1e-12)


def test_passes_are_not_rejections_plus_one_where_the_last_token_is_rejected():
  tables = tb.random_tables(3, 3, seed=5)
  got = of_tables(tables, (3, 2, 1), 1)
  mean = np.exp(got.log_prob) @ np.asarray(got.mean_counts)
  last_rejected = sum(
    p
    for (_, outer, rejections, _), p in tb.enumerate_runs(tables, (3, 2, 1), 1).items()
    if outer == rejections
  )
  assert last_rejected > 0.1
  assert abs(mean[0] - (mean[1] + 1 - last_rejected)) < 1e-12
  # 11 + 1 blocks: with one causal pass an outer loop, a full forward each.
  np.testing.assert_allclose(ssmd.mean_nfe(mean, 11, 1), mean[0], atol=1e-12)
  assert ssmd.mean_nfe(np.array([1.0, 0.0, 7.0]), 11, 1) == 18 / 12


@pytest.mark.long
def test_marginals_are_sums_of_the_joint_distribution():
  tables = tb.random_tables(3, 3, seed=6)
  args = (tables, (3, 2, 1), 2)
  joint = np.exp(of_tables(*args).log_joint)
  for counts, axes in (
    ((), (1, 2, 3)),
    (("outer_loops",), (2, 3)),
    (("outer_loops", "causal_passes"), (2,)),
  ):
    got = np.exp(of_tables(*args, counts=counts).log_joint)
    np.testing.assert_allclose(got, joint.sum(axes), atol=1e-13)


def test_given_tokens_are_conditions():
  """p(x | its first two tokens): rows of the passes that never happen may hold anything."""
  tables = tb.random_tables(4, 2, seed=7)
  observed = np.stack([tb.observed(tables, x) for x in tb.texts(tables)], axis=1)
  observed[:, :, :2] = np.nan
  args = (*observed, np.array([9, 9, 2, 1]), np.float64(1))
  got = every_text(*args, start=2).log_prob
  # One sum for each prefix, over all its continuations.
  np.testing.assert_allclose(np.exp(got).reshape(4, 4).sum(1), 1, atol=1e-12)
  assert np.ptp(got.reshape(4, 4), axis=0).min() > 1e-3
  whole = every_text(*args, start=4)
  # Nothing left to draw.
  assert (whole.log_prob == 0).all() and (whole.log_joint[:, 0, 0, 0] == 0).all()


def test_a_single_token():
  p, q = np.log([[0.3]]), np.log([[0.8]])
  got = every_text(p[None], q[None], np.array([1]), np.float64(1))
  assert abs(float(got.log_prob[0]) - math.log(0.8)) < 1e-15
  np.testing.assert_allclose(np.exp(got.log_joint[0, 1, :, 1]), [0.3, 0.5], atol=1e-15)


def test_improbable_texts_keep_their_digits():
  """Thirty factors of 1e-30 and nearly equal distributions: nothing underflows or cancels."""
  size = 30
  p = np.full((size, size), -30 * math.log(10.0))
  q = p + 1e-9
  run = quick_jit(ssmd.totals, static_argnames="n_inner")
  got = run(p, q, np.full(size, size), n_inner=1)
  # min(P, Q) = P, so a run is a chain of P with any number of r = Q - P = P (e^1e-9 - 1).
  expected = size * p[0, 0] + size * math.log1p(math.expm1(1e-9))
  assert abs(float(got.log_prob) - expected) < 1e-9
  np.testing.assert_allclose(float(got.mean_counts[1]), size * 1e-9, rtol=1e-5)
  nothing = np.full((size, size), -INF)
  impossible = run(nothing, nothing, np.full(size, size), n_inner=1)
  assert impossible.log_prob == -INF and not np.isnan(impossible.mean_counts).any()


def test_settings_out_of_range():
  zeros = np.zeros((1, 1))
  with pytest.raises(UsageError, match="n_inner=0"):
    ssmd.exact(zeros, zeros, np.array([1]), 0)
  with pytest.raises(UsageError, match="'nfe'"):
    ssmd.exact(zeros, zeros, np.array([1]), 1, counts=("nfe",))
  long = np.zeros((256, 256))
  with pytest.raises(UsageError, match="3 counts of 256 tokens does not fit.*ssmd.totals"):
    ssmd.exact(long, long, np.ones(256, int), 1)
