"""The authors' code, replayed: their drafts, their tokens, and as many forwards in each call.

Every recorded call is replayed, whatever its margin; the multi-block runs are those of the version
that chains blocks. There a block begins with its first token known, so that token is given to our
samplers as the end of the prompt.
"""

import json
from typing import ClassVar, NamedTuple

import jax
import numpy as np
import pytest

from sbdjax import pytree
from sbdjax.decode import base
from sbdjax.decode.causal.ar import prefill
from sbdjax.decode.jacobi.drafts import Given
from sbdjax.decode.jacobi.jacobi import Jacobi, JacobiMultiblock
from sbdjax.decode.jacobi.recycling import NoPool, Points
from sbdjax.decode.jacobi.trajectories import block_trajectory
from tests.decode import jacobi_reference
from tests.helpers import golden_file
from tests.jacobi_goldens import open_recorded_qwen2
from tests.jit import quick_jit
from tests.reference import network

PAD, WIDTH, MAX_TOKENS = 63, 60, 48


@pytree.dataclass
class PointsWithoutPadding(Points):
  """As the authors' code, which leaves its padding out."""

  skip: ClassVar[int] = PAD


def folder():
  return golden_file("jacobi", "goldens.json").parent


@pytest.fixture(scope="module")
def models(tmp_path_factory):
  """The four networks."""
  files = sorted(folder().glob("model?.npz"))
  return [open_recorded_qwen2(f, tmp_path_factory.mktemp(f.stem)) for f in files]


class Call(NamedTuple):
  """One call of the recorded code.

  Attributes:
    text: prompt, earlier blocks and the known first token of this one.
    drafts: those after it.
    expected: tokens after `text`.
    number: how many the call finds; of the last call the very last is not recorded.
    iterations: forwards.
  """

  model: int
  text: list
  drafts: list
  expected: list
  number: int
  eos: int
  iterations: int


def calls(algorithm, n):
  """The calls of all cases of an algorithm; those that only say EOS have nothing to replay."""
  found = []
  for case in json.loads((folder() / "goldens.json").read_text())["cases"]:
    if (case["algo"], case["n"]) != (algorithm, n) or len(case["tokens"]) < 2:
      continue
    text, eos = case["prompt"] + case["tokens"], -1 if case["eos"] is None else case["eos"]
    start = len(case["prompt"])
    for block, init, iterations in zip(
      case["blocks"], case["inits"][1:], case["iters"], strict=True
    ):
      number = len(block) - (block[-1] == eos)  # one that does not end knows a token more
      found.append(
        Call(
          model=case["model"],
          text=text[: start + 1],
          drafts=init[1:],
          expected=text[start + 1 : start + 1 + number],
          number=number,
          eos=eos,
          iterations=iterations,
        )
      )
      start += len(block)
  assert found
  return found


def decoder(lm, n, blocks, ratio, pool_size):
  """Our sampler with the settings of a case; its first drafts are an argument."""

  def decode(params, prompt, length, limit, eos, drafts):
    pool = PointsWithoutPadding(pool_size - 1, "batch") if pool_size else NoPool()
    settings = dict(block_size=n, draft_init=Given(drafts), pool=pool)
    method = Jacobi(**settings)
    if blocks > 1:
      method = JacobiMultiblock(num_blocks=blocks, spawn_ratio=ratio, **settings)
    sampler = method.sampler(lm, base.Limits(MAX_TOKENS, (eos,), limit))
    return base.decode(sampler, params, prompt, length, jax.random.key(0)).out

  return quick_jit(decode)


def replay(decode, params, text, drafts, limit, eos):
  """(tokens, forwards, reveal steps) after `text`; beyond its drafts there is padding."""
  prompt = np.zeros((1, WIDTH), np.int32)
  prompt[0, : len(text)] = text
  padded = np.full((1, MAX_TOKENS + 16), PAD, np.int32)
  padded[0, : len(drafts)] = drafts
  arrays = (prompt, np.int32([len(text)]), np.int32([limit]), np.int32(eos), padded)
  out = jax.device_get(decode(params, *arrays))
  span = slice(len(text), int(out.length_B[0]))
  return out.tokens_BxC[0, span].tolist(), int(out.nfe_B[0]), out.reveal_step_BxC[0, span].tolist()


# (algorithm, block size, K, r, pool size)
QUICK = [("MRold35aab2b_K2_r0.5_pool4", 16, 2, 0.5, 4)]
LONG = [
  ("vanilla", 8, 1, 1.0, 0),
  ("MR_K1_r0.85_pool4", 16, 1, 1.0, 4),
  ("MRold35aab2b_K2_r0.85_pool0", 8, 2, 0.85, 0),
  ("MRold35aab2b_K2_r0.85_pool4", 8, 2, 0.85, 4),
  ("MRold35aab2b_K3_r0.5_pool4", 8, 3, 0.5, 4),
  ("MRold35aab2b_K2_r0.5_pool0", 16, 2, 0.5, 0),
]
ALL = QUICK + [pytest.param(*case, marks=pytest.mark.long) for case in LONG]


@pytest.mark.parametrize("algorithm, n, blocks, ratio, pool_size", ALL)
def test_same_tokens_and_forwards_in_every_call(models, algorithm, n, blocks, ratio, pool_size):
  decode = decoder(models[0].lm, n, blocks, ratio, pool_size)
  spent = 0
  for call in calls(algorithm, n):
    params = models[call.model].params
    limit = call.number + (call.expected[-1] == call.eos)  # EOS ends it, not the limit
    tokens, nfe, _ = replay(decode, params, call.text, call.drafts, limit, call.eos)
    assert (len(tokens), tokens[: len(call.expected)]) == (call.number, call.expected), call
    assert nfe == call.iterations, call
    spent += len(tokens) - nfe
  assert spent > 0


@pytest.mark.long
@pytest.mark.parametrize("algorithm, n, blocks, ratio, pool_size", QUICK + LONG)
def test_the_reference_with_idle_forwards_is_the_authors_code(
  models, algorithm, n, blocks, ratio, pool_size
):
  config = models[0].lm.config
  for call in calls(algorithm, n):
    params = models[call.model].params

    def from_call(key, text, position, call=call):
      i = position - len(call.text)
      return call.drafts[i] if i < len(call.drafts) else PAD

    rules = jacobi_reference.Rules(
      n,
      blocks,
      ratio,
      fill=from_call,
      pad=lambda *_: PAD,
      published=True,
      pool=(lambda: jacobi_reference.Points(pool_size, PAD)) if pool_size else lambda: None,
    )

    def logits_fn(tokens, visible, params=params):
      return network.forward(config, params, tokens, np.arange(len(tokens)), visible)

    def finished(generated, limit):
      return generated[:limit] if len(generated) >= limit else None

    run = jacobi_reference.reference(lambda key, x: np.argmax(x), finished, rules)
    tokens, nfe, _ = run(logits_fn, call.text, call.number, jax.random.key(0))
    assert (tokens[: len(call.expected)], nfe) == (call.expected, call.iterations), call


def vanilla_runs():
  cases = json.loads((folder() / "goldens.json").read_text())["cases"]
  return [c for c in cases if c["algo"] == "vanilla"]


@pytest.mark.long
def test_a_run_of_blocks_and_the_trajectory_of_the_first(models):
  """Several blocks in one run; the forward over the prompt gives the recorded first drafts."""
  n, lm = 8, models[0].lm
  decode = decoder(lm, n, 1, 1.0, 0)

  @quick_jit
  def trajectory(params, prompt, length, last, draft):
    cache = prefill(lm, params, prompt, length, WIDTH + n)
    return block_trajectory(lm, params, cache, last, draft)

  def points(params, text, draft):
    prompt = np.zeros((1, WIDTH), np.int32)
    prompt[0, : len(text)] = text
    found = trajectory(
      params, prompt, np.int32([len(text) - 1]), np.int32(text[-1:]), np.int32([draft])
    )
    return np.asarray(found.points_BxIxn[0, : int(found.num_points_B[0])])

  for case in vanilla_runs():
    params, first = models[case["model"]].params, case["tokens"][:1]
    eos = -1 if case["eos"] is None else case["eos"]
    if first == [eos]:
      prompt_only = replay(decode, params, case["prompt"], case["inits"][0], 8, eos)
      assert prompt_only[:2] == (first, 1)
      continue
    text = case["prompt"] + first
    drafts = [token for init in case["inits"][1:] for token in [*init[1:], PAD]]
    tokens, nfe, steps = replay(decode, params, text, drafts, MAX_TOKENS, eos)
    expected = case["tokens"][1:]
    assert tokens[: len(expected)] == expected
    if eos >= 0:
      assert tokens == expected and nfe == sum(case["iters"])
    ends = np.cumsum(case["iters"]) - 1
    whole = len(expected) // n
    assert [steps[n * (b + 1) - 1] for b in range(whole)] == ends[:whole].tolist()

    assert points(params, case["prompt"], case["inits"][0])[1].tolist() == case["inits"][1]
    assert len(points(params, text, [*case["inits"][1][1:], PAD])) == 1 + case["iters"][0]
