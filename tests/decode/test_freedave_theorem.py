"""Theorem 1 and Lemma 1 of the FreeDave paper, by brute force over all paths of small canvases.

The oracle path x_0 .. x_N is static decoding, one position per step. A jump a -> b is feasible if
the prediction at x_a alone leads to x_b (Definition 2). Theorem 1: jumps as long as equation 7
verifies them make a feasible path; with d at least the canvas length these are the jumps FreeDave
takes.

Lemma 1 says that path is the shortest feasible one. As printed that is not so: a jump may be
feasible although a shorter one from the same place is not (the same tokens in another order), and
no verifier that looks at the drafts one after the other can see it. The counterexample below has
three positions. (Nor is the longest verified jump always the best one: a state further on may be
a worse place to jump from. On random tables that costs a forward in one case of twenty.)
"""

import jax
import numpy as np

from sbdjax.decode import base
from sbdjax.decode.diffusion.blocks import Blocks
from sbdjax.decode.diffusion.freedave import FreeDave
from tests import models
from tests.decode import diffusion_reference as reference
from tests.jit import quick_jit
from tests.reference import network

VOCAB, MASK, LENGTH, ROWS = 7, 6, 6, 24
LM = models.lm_of(vocab_size=VOCAB, mask_id=MASK, tie_embeddings=False)


class Paths:
  """The oracle path of one row, and all jumps between its states."""

  def __init__(self, net, prompt, length):
    self.rules = reference.Rules(MASK, (), length, "full", length)
    self.span, self.prompt_len, self.N = [(len(prompt), len(prompt) + length)], len(prompt), length
    self.states, self.predictions = [prompt + [MASK] * length], []
    for _ in range(length):
      x = self.states[-1]
      self.predictions.append(reference.predict(self.rules, net, x, jax.random.key(0)))
      step = reference.one_step(self.rules, x, self.predictions[-1], self.span, len(prompt))
      self.states.append(step)

  def jump(self, a, b):
    """Where the prediction at x_a alone leads in b - a steps."""
    x, p = self.states[a], self.predictions[a]
    return reference.draft(self.rules, x, p, self.span, self.prompt_len, b - a)

  def feasible(self, a, b):
    return self.jump(a, b) == self.states[b]

  def verified(self, a, b):
    return all(self.feasible(a, c) for c in range(a + 1, b + 1))

  def h(self, a):
    """Equation 7 with d = N: steps until a decision differs from what the oracle adds to it."""
    for i in range(1, self.N - a):
      oracle = zip(self.jump(a, a + i), self.states[a + i], self.states[a + i + 1], strict=True)
      union = [z if y != z else x for x, y, z in oracle]
      if self.jump(a, a + i + 1) != union:
        return i
    return self.N - a

  def path(self):
    """The states that equation 7 visits."""
    a = [0]
    while a[-1] < self.N:
      a.append(a[-1] + self.h(a[-1]))
    return a

  def shortest(self, allowed):
    """Jumps of the shortest path from x_0 to x_N, over all of them."""
    left = {self.N: 0}
    for a in reversed(range(self.N)):
      left[a] = 1 + min(left[b] for b in range(a + 1, self.N + 1) if allowed(a, b))
    return left[0]


def test_freedave_takes_the_path_of_theorem_1():
  params = models.random_params(LM, seed=8)
  params["head"] = 0.5 * params["head"]
  prompts = np.random.default_rng(0).integers(0, MASK, (ROWS, 3)).astype(np.int32)
  method = FreeDave(draft_steps=LENGTH, blocks=Blocks(LENGTH, "full"))
  sampler = method.sampler(LM, base.Limits(LENGTH))
  run = quick_jit(lambda *args: base.decode(sampler, *args).out)
  out = jax.device_get(run(params, prompts, np.full(ROWS, 3), jax.random.key(0)))

  def net(tokens, visible):
    logits = network.forward(LM.config, params, tokens, np.arange(len(tokens)), visible)
    logits[:, MASK] = -1e30
    return logits

  jumps, longer = [], 0
  for row, prompt in enumerate(prompts.tolist()):
    paths = Paths(net, prompt, LENGTH)
    path = paths.path()
    assert all(paths.feasible(a, b) for a, b in zip(path, path[1:], strict=False))
    assert out.tokens_BxC[row].tolist() == paths.states[-1]
    # Each commit is one jump, and reveals what the oracle reveals over it.
    steps = out.reveal_step_BxC[row, 3:]
    assert steps.max() + 1 == len(path) - 1
    for step, (a, b) in enumerate(zip(path, path[1:], strict=False)):
      between = [i for i in range(3, 3 + LENGTH) if paths.states[a][i] != paths.states[b][i]]
      assert between == (3 + np.flatnonzero(steps == step)).tolist()
    # One forward to begin with, one per jump, none for the last step.
    assert out.nfe_B[row] in (len(path) - 1, len(path))
    jumps.append(len(path) - 1)
    assert paths.shortest(paths.feasible) <= paths.shortest(paths.verified) <= jumps[-1] <= LENGTH
    longer += paths.shortest(paths.feasible) < jumps[-1]
  assert min(jumps) < LENGTH - 1 and len(set(jumps)) > 2  # paths of many lengths
  assert longer  # Lemma 1 as printed would make this 0


def test_lemma_1_as_printed_has_a_counterexample():
  """Tokens never change, but once the first is known the other two change places."""

  def net(tokens, visible):
    del visible
    sure = [9, 3, 2, 1] if tokens[1] == MASK else [9, 9, 1, 2]
    return np.array([[s if v == i else 0.0 for v in range(VOCAB)] for i, s in enumerate(sure)])

  paths = Paths(net, [0], 3)
  assert paths.states[-1] == [0, 1, 2, 3]
  assert [paths.feasible(0, b) for b in (1, 2, 3)] == [True, False, True]
  assert paths.shortest(paths.feasible) == 1  # everything at once
  assert paths.path() == [0, 1, 3]  # but nobody knows without having seen x_1
  run = reference.freedave(paths.rules, net, [0], 3, jax.random.key(0), d=3)
  assert (run.x, run.commits) == ([0, 1, 2, 3], 2)
