"""Block-wise decoding of diffusion models, one row at a time, nothing cached, as the papers word it.

A network is a function (tokens, visible) -> logits [L, V] in float64 with the mask token taken
out; over a frozen cache it is also given `positions`. Sequences are Python lists; positions are counted from 0, the prompt included.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tests.reference import network, visibility


@dataclasses.dataclass(frozen=True)
class Rules:
  """What decides the text, and how FreeDave goes about it.

  Attributes:
    steps: forwards of a block by count, or None for threshold decoding.
    tau: its threshold, or None.
    order: "confidence", "margin", "entropy", "random" or "left_to_right".
    choose: (keys [L], logits [L, V]) -> tokens [L].
    stores: a finished block is run once more to be cached.
    frozen: "prefix" or "dual": what is not the block was run when the block began, and stays.
  """

  mask: int
  eos: tuple[int, ...]
  block: int
  attention: str
  steps: int | None
  tau: float | None = None
  order: str = "confidence"
  choose: Callable[[Any, np.ndarray], np.ndarray] = lambda keys, x: np.argmax(x, axis=-1)
  drawn: bool = False
  exit: str = "never"
  shifted: bool = False
  stores: bool = False
  frozen: str | None = None


def blocks(rules, prompt_len, limit):
  """[start, stop) of every block that is to be decoded."""
  k = rules.block
  if rules.attention == "block_causal":
    first, end = prompt_len - prompt_len % k, prompt_len + limit
    while end % k:
      end += 1
  else:
    first, end = prompt_len, prompt_len + limit
  return [(a, min(a + k, end)) for a in range(first, end, k)]


def outputs(rules, net, x, opened, block):
  """Logits [L, V]; `opened` is the canvas that was frozen when `block` began, or None.

  A frozen cache is two texts side by side: the frozen one, which sees itself, and the live part,
  which sees of the frozen one what it does not hold itself.
  """
  if rules.attention == "block_causal":
    return net(x, visibility.block_causal(len(x), rules.block))
  if opened is None:
    return net(x, visibility.full(len(x), len(x), len(x)))
  (start, stop), end = block, len(x)
  # With shifted logits the position before the block is asked too; it is part of the frozen text.
  live = range(start - rules.shifted, end if rules.frozen == "prefix" else stop)

  def sees(q, s):
    if s >= end:
      return q >= end and live[s - end] >= start
    return q < end or s < start or (rules.frozen == "dual" and s >= stop)

  tokens, positions = opened + [x[i] for i in live], [*range(end), *live]
  found = net(tokens, visibility.matrix(len(tokens), len(tokens), sees), np.array(positions))
  logits = np.zeros((end, found.shape[1]))
  logits[live] = found[end:]
  return logits


def predict(rules, net, x, key, opened=None, block=None):
  """token, confidence, score of every position."""
  logits = outputs(rules, net, x, opened, block)
  if rules.shifted:
    logits = np.concatenate([logits[:1], logits[:-1]])
  fold = lambda stream: jax.vmap(jax.random.fold_in, (None, 0))(
    jax.random.fold_in(key, stream), np.arange(len(x))
  )
  token = rules.choose(fold(0) if rules.drawn else None, logits)
  p = np.sort(network.softmax(logits), axis=-1)
  score = {
    "confidence": lambda: p[:, -1],
    "margin": lambda: p[:, -1] - p[:, -2],
    "entropy": lambda: np.sum(p * np.log(np.maximum(p, 1e-300)), axis=-1),
    "random": lambda: np.array([float(jax.random.uniform(k)) for k in fold(1)]),
    "left_to_right": lambda: -np.arange(len(x)),
  }[rules.order]()
  return token, p[:, -1], score


def ranked(rules, x, score, span):
  """Masked positions of the blocks in `span`: block by block, surest first, leftmost on ties."""
  order = []
  for a, b in span:
    order += sorted((i for i in range(a, b) if x[i] == rules.mask), key=lambda i: -score[i])
  return order


def counts(total, steps):
  """How many of `total` positions each step reveals."""
  steps = min(steps, total)
  return [total // steps + (i < total % steps) for i in range(steps)]


def one_step(rules, x, prediction, span, prompt_len):
  """`x` after what static (or threshold) decoding does next in the blocks of `span`."""
  token, confidence, score = prediction
  x = list(x)
  for a, b in span:
    order = ranked(rules, x, score, [(a, b)])
    if not order:
      continue
    if rules.steps is None:
      now = [i for i in order if confidence[i] >= rules.tau] or order[:1]
    else:
      total = b - max(a, prompt_len)
      plan, gone = counts(total, rules.steps), total - len(order)
      while gone > 0:
        gone -= plan.pop(0)
      assert gone == 0, "a static state lies between two steps"
      now = order[: plan[0]]
    for i in now:
      x[i] = int(token[i])
    break
  return x


def draft(rules, x, prediction, span, prompt_len, j):
  """`x` after j steps if the prediction never changed."""
  y = one_step(rules, x, prediction, span, prompt_len)
  for _ in range(j - 1):
    if rules.steps is None:
      for i in ranked(rules, y, prediction[2], span)[:1]:
        y[i] = int(prediction[0][i])
    else:
      y = one_step(rules, y, prediction, span, prompt_len)
  return y


def ends_row(rules, x, block, prompt_len):
  inside = [x[i] in rules.eos for i in range(*block)]
  if rules.exit == "block":
    return all(inside)
  return rules.exit == "eos" and any(inside[max(0, prompt_len - block[0]) :])


class Run:
  """The text of one row, and what it cost."""

  def __init__(self, rules, prompt, limit):
    self.rules, self.prompt_len, self.limit = rules, len(prompt), limit
    self.blocks = blocks(rules, len(prompt), limit)
    self.x = list(prompt) + [rules.mask] * (self.blocks[-1][1] - len(prompt))
    self.steps = [-1] * len(self.x)
    self.nfe = self.commits = 0
    self.accepted = []

  def commit(self, new):
    for i, (a, b) in enumerate(zip(self.x, new, strict=True)):
      if a != b:
        self.steps[i] = self.commits
    self.x, self.commits = list(new), self.commits + 1

  def full(self, block):
    return self.rules.mask not in self.x[slice(*block)]

  def leave(self, block):
    """Called with a finished block; True where the row ends with it."""
    self.nfe += self.rules.stores
    if ends_row(self.rules, self.x, block, self.prompt_len):
      self.x[block[1] :] = [self.rules.eos[0]] * (len(self.x) - block[1])
      return True
    return False

  def result(self):
    """The text as far as it was asked for, forwards, and commits: blocks may end after it."""
    asked = slice(self.prompt_len, self.prompt_len + self.limit)
    return self.x[asked], self.nfe, self.steps[asked]


def plain(rules, net, prompt, limit, key):
  """Static or threshold decoding (Algorithm 1); a Run."""
  run = Run(rules, prompt, limit)
  for block in run.blocks:
    opened = None
    while not run.full(block):
      run.nfe += 1
      p = predict(rules, net, run.x, key, opened, block)
      opened = opened or (list(run.x) if rules.frozen else None)
      run.commit(one_step(rules, run.x, p, [block], run.prompt_len))
    if run.leave(block):
      break
  return run


def freedave(rules, net, prompt, limit, key, d, eager=False, skips=False):
  """Algorithm 2, by the steps listed in the notes on the public code; a Run."""
  run = Run(rules, prompt, limit)
  for n, block in enumerate(run.blocks):
    last = block == run.blocks[-1]
    ahead = -(-d // rules.block) if eager else 0
    span = run.blocks[n : n + 1 + ahead]
    window = slice(span[0][0], span[-1][1])
    step = lambda x, p, span=span: one_step(rules, x, p, span, run.prompt_len)
    if not run.full(block):
      run.nfe += 1
      p = predict(rules, net, run.x, key)
      opened = list(run.x) if rules.frozen else None
    while not run.full(block):
      left = run.x[slice(*block)].count(rules.mask)
      first = step(run.x, p)
      fills = rules.mask not in first[slice(*block)]
      known = left <= 1 or rules.steps is not None or skips
      alone = not eager or last or (skips and ends_row(rules, first, block, run.prompt_len))
      if fills and known and alone:
        run.commit(first)
        break
      count = min(d, run.x[window].count(rules.mask))
      drafts = [draft(rules, run.x, p, span, run.prompt_len, j + 1) for j in range(count)]
      run.nfe += 1
      seen = [predict(rules, net, y, key, opened, block) for y in drafts]
      targets = [step(y, q) for y, q in zip(drafts, seen, strict=True)]
      best = 0
      while later := [
        j for j in range(best + 1, count) if drafts[j][window] == targets[best][window]
      ]:
        best = later[-1]
      run.accepted.append(best)
      ahead_too = eager and rules.mask not in drafts[best][slice(*block)]
      run.commit(targets[best] if ahead_too else drafts[best])
      p = seen[best]
    if run.leave(block):
      break
  return run


def freedave_reusing(rules, net, prompt, limit, key, d, skips=False):
  """FreeDave over the whole rest of the canvas: no forward to store or to open a block; a Run.

  A prediction covers the blocks its forward looked at, and serves until none of them is open.
  """
  run = Run(dataclasses.replace(rules, stores=False), prompt, limit)
  ahead = -(-d // rules.block)
  present, p, drafts = 0, None, [run.x]
  while True:
    span = run.blocks[present : present + 1 + ahead]
    step = lambda x, p, span=span: one_step(rules, x, p, span, run.prompt_len)
    run.nfe += 1
    seen = [predict(rules, net, y, key) for y in drafts]
    if p is not None:
      best = 0
      while later := [
        j for j in range(best + 1, len(drafts)) if drafts[j] == step(drafts[best], seen[best])
      ]:
        best = later[-1]
      run.commit(drafts[best])
      seen = seen[best:]
    p = seen[0]
    opened = [block for block in span if not run.full(block)]
    if opened:
      first, block = step(run.x, p), opened[0]
      left = run.x[slice(*block)].count(rules.mask)
      fills = rules.mask not in first[slice(*block)]
      known = left <= 1 or rules.steps is not None or skips
      last = block == run.blocks[-1] or (skips and ends_row(rules, first, block, run.prompt_len))
      if fills and known and last:
        run.commit(first)
    while present < len(run.blocks) and run.full(run.blocks[present]):
      present += 1
      if run.leave(run.blocks[present - 1]):
        return run
    if present == len(run.blocks):
      return run
    covered = [block for block in span if block[0] >= run.blocks[present][0]]
    count = min(d, sum(run.x[slice(*block)].count(rules.mask) for block in covered))
    drafts = [draft(rules, run.x, p, covered, run.prompt_len, j + 1) for j in range(count)]
