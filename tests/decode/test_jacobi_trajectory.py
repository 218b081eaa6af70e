"""Points of a block: equation 3 of Jacobi Forcing, against recomputing every point from its text."""

import jax
import numpy as np
import pytest

from sbdjax.decode.causal.ar import prefill
from sbdjax.decode.jacobi.trajectories import block_trajectory
from sbdjax.decode.tokens import Categorical, Greedy
from tests import models
from tests.decode.cases.case import CONFIG, MASK
from tests.jit import quick_jit
from tests.reference import network, visibility

NET = models.lm_of(vocab_size=12, mask_id=MASK, tie_embeddings=False)
N, WIDTH, BATCH = 5, 4, 4
PROMPTS = models.tokens(BATCH, WIDTH, vocab_size=MASK, seed=4)
LENGTHS = np.random.default_rng(4).integers(1, WIDTH + 1, BATCH).astype(np.int32)


def reference_points(params, text, draft, choose):
  """y^(0), y^(1), ... until all but the last token of a point reproduce themselves."""
  points = [list(draft)]
  while True:
    x = text + points[-1]
    logits = network.forward(CONFIG, params, x, np.arange(len(x)), visibility.causal(len(x)))
    logits[:, MASK] = -np.inf
    new = [choose(len(text) + i, logits[len(text) - 1 + i]) for i in range(len(draft))]
    points.append(new)
    if new[:-1] == points[-2][:-1]:
      return points


@pytest.mark.parametrize(
  "token",
  [
    pytest.param(Greedy(), id="greedy", marks=pytest.mark.long),
    pytest.param(Categorical(0.8), id="drawn", marks=pytest.mark.long),
  ],
)
def test_points_are_those_of_equation_3(token):
  params = models.random_params(NET, seed=2)
  params["head"] = 0.5 * params["head"]
  keys = jax.random.split(jax.random.key(1), BATCH)
  drafts = models.tokens(BATCH, 2 * N, vocab_size=MASK, seed=6)

  @quick_jit
  def two_blocks(params, drafts):
    cache = prefill(NET, params, PROMPTS, LENGTHS - 1, WIDTH + 2 * N)
    last = PROMPTS[np.arange(BATCH), LENGTHS - 1]
    first = block_trajectory(NET, params, cache, last, drafts[:, :N], token, keys)
    last = first.points_BxIxn[:, -1, -1]
    cache = first.cache
    return first, block_trajectory(NET, params, cache, last, drafts[:, N:], token, keys)

  blocks = jax.device_get(two_blocks(params, drafts))
  iterations = []
  for row in range(BATCH):

    def choose_at(position, logits, row=row):
      return int(token(jax.random.fold_in(keys[row], position), np.float32(logits)))

    text = PROMPTS[row, : LENGTHS[row]].tolist()
    for block, drafted in zip(blocks, np.split(drafts[row], 2), strict=True):
      points = reference_points(params, text, drafted.tolist(), choose_at)
      k = int(block.num_points_B[row])
      assert block.points_BxIxn[row, :k].tolist() == points
      assert (block.points_BxIxn[row, k:] == block.points_BxIxn[row, k - 1]).all()
      text += points[-1]
      iterations.append(k - 1)
    # The fixed points are what one token after the other gives.
    for i in range(LENGTHS[row], len(text)):
      x = text[:i]
      logits = network.forward(CONFIG, params, x, np.arange(i), visibility.causal(i))[-1]
      logits[MASK] = -np.inf
      assert choose_at(i, logits) == text[i]
    assert blocks[1].cache.length_B[row] == len(text) - 1
  assert min(iterations) < N  # some draft was right, and not in every row
  assert len(set(iterations)) > 1
