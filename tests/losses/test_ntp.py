"""The next-token loss against a sum of log-probabilities written out target by target."""

import jax
import numpy as np
import pytest

from sbdjax.errors import UsageError
from sbdjax.losses import ntp
from tests.losses import table_model
from tests.losses.table_model import naive_ntp, total


@pytest.mark.parametrize("document_mask", [True, False])
def test_equals_the_sum_over_targets(document_mask):
  lm, loss_fn = table_model.make_lm(halves=1), ntp.NTPLoss(document_mask)
  batch = table_model.batch()
  terms = naive_ntp(batch, document_mask)

  @jax.jit
  def run(params):
    return jax.value_and_grad(
      lambda p: (lambda loss, weight, metrics: (loss, (weight, metrics)))(
        *loss_fn(lm, p, batch, jax.random.key(0))
      ),
      has_aux=True,
    )(params)

  (loss, (weight, metrics)), grads = run(table_model.PARAMS)
  np.testing.assert_allclose(loss, total(terms, "loss"), rtol=1e-6)
  np.testing.assert_allclose(weight, total(terms, "weight"), rtol=1e-6)
  np.testing.assert_allclose(grads["table"], total(terms, "gradient"), atol=1e-6)
  np.testing.assert_allclose(metrics["ntp_loss"], (loss, weight), rtol=1e-6)
  expected = (total(terms, "correct"), total(terms, "weight"))
  np.testing.assert_allclose(metrics["ntp_accuracy"], expected, rtol=1e-6)


def test_document_mask_matters_in_this_test():
  """Guards the test above: the two settings must not coincide on its batch."""
  batch = table_model.batch()
  losses = [total(naive_ntp(batch, flag), "loss") for flag in (True, False)]
  assert abs(losses[0] - losses[1]) > 0.1


def test_targets_stay_inside_their_document_and_keep_their_weight():
  batch = {
    "tokens": np.array([[3, 1, 4, 1, 5, 0]], np.int32),
    "weights": np.array([[1, 1, 0.5, 1, 1, 0]], np.float32),
    "segment_ids": np.array([[1, 1, 1, 2, 2, 0]], np.int32),
  }
  targets, weights = ntp.shifted(batch)
  np.testing.assert_array_equal(targets, [[1, 4, 1, 5, 0, 0]])
  np.testing.assert_array_equal(weights, [[1, 0.5, 0, 1, 0, 0]])


def test_a_senseless_chunk_is_refused_in_one_line():
  with pytest.raises(UsageError, match="loss.chunk=0") as error:
    ntp.NTPLoss(chunk=0)
  assert "\n" not in str(error.value)
