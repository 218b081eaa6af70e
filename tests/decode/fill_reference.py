"""Samplers that fill a row in any order, one row at a time and everything recomputed.

Also a self-speculative model made of an ordinary network: the trunk is the network with every
position seeing every other, the target adds what the network says at the position before in the
order sigma, seeing the positions up to there. Logits of both are sums, so that numpy can follow.
"""

import itertools
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from sbdjax import masks, sigma_lm
from sbdjax.decode import verify
from tests.reference import network, visibility


def self_speculative(lm):
  """The SigmaLM described above; one block is the trunk and one is causal, as its NFE has it."""

  def trunk(params, tokens, *, length_B=None):
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return lm.apply(params, tokens, positions_BxT=positions, mask=masks.Full(length_B))[0]

  def target(params, tokens, hidden, sigma, *, equal_at_B=None):
    ordered = sigma_lm.in_order(tokens, sigma)
    causal, _ = lm.apply(params, ordered, positions_BxT=sigma, mask=masks.Causal())
    own = sigma_lm.in_order(hidden, sigma)
    following = jnp.concatenate([own[:, 1:], own[:, -1:]], axis=1)
    return sigma_lm.align(causal + following, own, equal_at_B)

  head = SimpleNamespace(num_layers=1)
  return sigma_lm.SigmaLM(lm.config, head, lm.init, trunk, target, lm.logits)


def _uniform(key, at):
  return float(jax.random.uniform(jax.random.fold_in(key, at)))


def _keys(key):
  """The row's keys for order, and for tokens."""
  return jax.random.split(key)


def _every(x):
  return visibility.full(len(x), len(x), len(x))


def ancestral_plan(num_steps, pace):
  def plan(key, hidden):
    return {p: min(int(pace(_uniform(key, p)) * num_steps), num_steps - 1) for p in hidden}

  return plan


def ranked_plan(tokens_per_step):
  def plan(key, hidden):
    order = sorted(hidden, key=lambda p: _uniform(key, p))
    return {p: rank // tokens_per_step for rank, p in enumerate(order)}

  return plan


def reference_planned(mask, choose, plan):
  """Masked diffusion whose positions were given their steps beforehand."""

  def run(logits_fn, prompt, limit, key):
    x = [*prompt, *[mask] * limit]
    order_key, token_key = _keys(key)
    hidden = [p for p, token in enumerate(x) if token == mask]
    due = plan(order_key, hidden)
    steps = {}
    for nfe, (_, group) in enumerate(itertools.groupby(sorted(hidden, key=due.get), key=due.get)):
      logits = logits_fn(x, _every(x))
      for p in list(group):
        x[p], steps[p] = int(choose(jax.random.fold_in(token_key, p), logits[p])), nfe
    return _outcome(x, len(prompt), steps)

  return run


def _outcome(x, start, steps):
  return x[start:], max(steps.values()) + 1, [steps[p] for p in range(start, len(x))]


def reference_rule(mask, choose, rule, value):
  """Masked diffusion with a reveal rule."""

  def run(logits_fn, prompt, limit, key):
    x, steps = [*prompt, *[mask] * limit], {}
    _, token_key = _keys(key)
    for nfe in itertools.count():
      masked = [p for p, token in enumerate(x) if token == mask]
      if not masked:
        return _outcome(x, len(prompt), steps)
      logits = logits_fn(x, _every(x))
      for p in rule(network.softmax(logits), masked, value):
        x[p], steps[p] = int(choose(jax.random.fold_in(token_key, p), logits[p])), nfe

  return run


def reference_speculative(mask, log_probs, window, n_inner, first_equal=False):
  """Algorithm 3 for `self_speculative(lm)`.

  Args:
    log_probs: float64 logits [V] -> log-probabilities.
    window: D -> W(i) [D].
  """

  def run(logits_fn, prompt, limit, key):
    order_key, token_key = _keys(key)
    x = [*prompt, *[mask] * limit]
    size = len(x)
    hidden = [p for p in range(size) if x[p] == mask]
    sigma = [p for p in range(size) if x[p] != mask]
    i = len(sigma)
    sigma += sorted(hidden, key=lambda p: _uniform(order_key, p))
    rank = np.argsort(sigma)
    seen = np.tril(np.ones((size, size), bool))[rank][:, rank]
    steps, nfe = {}, 0
    while i < size:
      trunk = logits_fn(x, _every(x))
      drafts = {d: log_probs(trunk[sigma[d]]) for d in range(i, size)}
      keys = {d: jax.random.fold_in(token_key, sigma[d]) for d in range(i, size)}
      end = min(i + window(size)[i], size)
      y = list(x)
      for d in range(i, end):
        noise = verify.draft_key(keys[d])
        y[sigma[d]] = int(jax.random.categorical(noise, _float32(drafts[d]), mode="high"))
      decided, rejections = i, 0
      while decided < end and rejections < n_inner:
        causal = logits_fn(y, seen)
        for d in range(decided, end):
          decided, place = d + 1, sigma[d]
          same = d == 0 or (first_equal and d == i)
          q = trunk[place] if same else trunk[place] + causal[sigma[d - 1]]
          q, p, token = log_probs(q), drafts[d], y[place]
          if not verify.accepts(keys[d], _float32(p[token]), _float32(q[token])):
            y[place] = int(verify.resample(keys[d], _float32(p), _float32(q)))
            rejections += 1
            break
      for d in range(i, decided):
        x[sigma[d]], steps[sigma[d]] = y[sigma[d]], nfe
      i, nfe = decided, nfe + 1
    return _outcome(x, len(prompt), steps)

  return run


def _float32(x):
  return jnp.asarray(x, jnp.float32)


def softmax_at(temperature):
  return lambda logits: network.log_softmax(logits / temperature)


def cosine_window(dtau):
  """Equations 143 to 147 one number at a time, rounded up."""

  def size(i, length):
    time = 1 - 2 / math.pi * math.acos((length - i) / length)
    masks_after = length * math.cos(math.pi / 2 * (1 - max(time - dtau, 0)))
    return max(1, math.ceil(length - i - masks_after - 1e-9))

  return lambda length: [size(i, length) for i in range(length)]
