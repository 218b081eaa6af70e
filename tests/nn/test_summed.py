"""Products of a few rows as sums: the same numbers, in programs that are compiled for them alone."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sbdjax.decode.base import Limits
from sbdjax.decode.causal.ar import AR
from sbdjax.decode.causal.verified_sbd import VerifiedSBD
from sbdjax.decode.generate import Decoder
from sbdjax.nn import prepare, summed
from sbdjax.nn.linear import Transposed, linear
from tests import models


@pytest.fixture
def always(monkeypatch):
  """Sums of small weights, too."""
  monkeypatch.setattr(summed, "_LARGE", 8)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
  ("rows", "outputs", "at_once"),
  [(1, 52, 4), (2, 51, 1), (3, 52, 4), (5, 54, 2), (6, 54, 2), (7, 52, 1)],
)
def test_a_product_is_that_of_numpy(rows, outputs, at_once, dtype):
  assert summed.outputs_at_once(max(2, rows), outputs) == at_once
  rng = np.random.default_rng(rows)
  x, w = rng.normal(size=(rows, 40)), rng.normal(size=(outputs, 40))
  kept = jnp.asarray(w, dtype)
  run = jax.jit(summed.product).lower(kept, jnp.asarray(x, jnp.float32))
  found = run.compile(summed.COMPILER_OPTIONS)(kept, jnp.asarray(x, jnp.float32))
  assert found.dtype == jnp.float32 and found.shape == (rows, outputs)
  np.testing.assert_allclose(found, x @ np.asarray(kept, np.float64).T, atol=1e-5)


def test_what_is_infinite_or_no_number_stays_so(always):
  w = jnp.ones((4, 4)).at[1, 2].set(jnp.inf).at[3, 0].set(jnp.nan)
  x = jnp.ones((2, 4))
  found = jax.jit(summed.product).lower(w, x).compile(summed.COMPILER_OPTIONS)(w, x)
  np.testing.assert_array_equal(found, [[4, np.inf, 4, np.nan]] * 2)


def test_what_is_no_number_in_one_row_stays_there(always):
  w, x = jnp.ones((4, 32)), jnp.ones((3, 32)).at[1, 20].set(jnp.nan)
  found = jax.jit(summed.product).lower(w, x).compile(summed.COMPILER_OPTIONS)(w, x)
  np.testing.assert_array_equal(np.isnan(found), [[False] * 4, [True] * 4, [False] * 4])


def test_where_it_pays():
  weight = lambda *shape, dtype=jnp.float32: jax.ShapeDtypeStruct(shape, dtype)
  layer, long, small = weight(960, 576), weight(576, 1536), weight(64, 192)
  assert [rows for rows in range(1, 9) if summed.pays(rows, layer)] == [*range(2, 7)]
  assert [rows for rows in range(1, 9) if summed.pays(rows, long)] == [2, 3, 4, 5]
  assert not any(summed.pays(rows, small) for rows in range(1, 9))
  assert summed.pays(1, weight(960, 576, dtype=jnp.bfloat16))


def test_the_input_is_computed_once(always):
  """A norm that makes the input is not computed anew for every output."""
  w = Transposed(jnp.ones((12, 8)), summed=True)

  def run(x, scale):
    x = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True)) * scale
    return linear(x, w)

  text = jax.jit(run).lower(jnp.ones((1, 3, 8)), jnp.ones(8)).compile(prepare.compiler_options(w))
  loops = [c for c in text.as_text().split("\n\n") if re.search(r"ROOT .* reduce\(.*reduce", c)]
  of_sums = [c for c in loops if c.count("parameter(") and "f32[3]" in c]
  assert of_sums and not any("f32[8]{0} parameter" in c or "rsqrt" in c for c in of_sums)


@pytest.mark.parametrize(
  ("method", "batch"),
  [pytest.param(AR(), 2, marks=pytest.mark.long), (VerifiedSBD(3), 1)],
  ids=["ar", "verified"],
)
def test_decoding_with_sums_gives_the_same_text(method, batch, always, monkeypatch):
  used = []
  product = summed.product
  monkeypatch.setattr(summed, "product", lambda *args: used.append(args) or product(*args))
  lm = models.lm_of(mask_id=12)
  params = models.random_params(lm, embedding_scale=0.5)
  prompts = [[1, 2, 3], [4, 5, 6, 7]]

  def texts():
    decoder = Decoder(lm, Limits(16))
    return [r.tokens for r in decoder.generate(method, params, prompts, jax.random.key(0), batch)]

  found = texts()
  assert used
  monkeypatch.setattr(summed, "pays", lambda *args: False)
  assert found == texts()


def test_options_are_asked_for_by_weights_that_may_be_sums():
  lm = models.lm_of()
  prepared = lm.prepare(models.random_params(lm), 2)
  assert prepare.compiler_options((1, prepared)) == {}
  sums = prepare.for_sums(prepared)
  assert prepare.compiler_options((1, sums)) == summed.COMPILER_OPTIONS
  assert jax.tree.structure(sums) != jax.tree.structure(prepared)  # another program
