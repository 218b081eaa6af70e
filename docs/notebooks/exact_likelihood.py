# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Exact likelihood of self-speculation
#
# A self-speculative sampler drafts tokens from P, accepts each with probability min(1, Q / P), and resamples the others. What is the probability
# of a text? Of all its runs there are exponentially many, yet a dynamic program over (place, rejections so far) sums them exactly
# ([method](../methods/ssmd.md), Proposition 3.1). Here it is compared with brute-force sampling on tables for three places and two tokens.

# %%
import itertools

import numpy as np

from sbdjax.likelihood import ssmd

rng = np.random.default_rng(0)
D, V = 3, 2
# draft[i][x[:i]][d]: distribution of place d, knowing the first i tokens; target knows all before d.
draft = {
  (c, d): rng.dirichlet(np.ones(V))
  for i in range(D)
  for c in itertools.product(range(V), repeat=i)
  for d in range(i, D)
}
target = {
  (i, c): rng.dirichlet(np.ones(V))
  for i in range(D)
  for d in range(i, D)
  for c in itertools.product(range(V), repeat=d)
}

# %% [markdown]
# ## The sampler
#
# One outer loop drafts all that is left, then verifies from left to right until the first rejection (Algorithm 2).


# %%
def sample():
  """One text, by the definition."""
  text = []
  while len(text) < D:
    i, context = len(text), tuple(text)
    drafts = [rng.choice(V, p=draft[context, d]) for d in range(i, D)]
    for d, v in zip(range(i, D), drafts, strict=True):
      p, q = draft[context, d], target[i, tuple(text)]
      if rng.random() < min(1.0, q[v] / p[v]):
        text.append(int(v))
        continue
      rest = np.maximum(q - p, 0.0)
      text.append(int(rng.choice(V, p=rest / rest.sum())))
      break
  return tuple(text)


count = 20_000
found = dict.fromkeys(itertools.product(range(V), repeat=D), 0)
for _ in range(count):
  found[sample()] += 1

# %% [markdown]
# ## The dynamic program
#
# It takes the log-probabilities of one text: row i is the pass that knows the first i tokens, column d the token at place d.

# %%
import jax.numpy as jnp


def log_likelihood(text):
  """log p(text), nats."""
  log_draft, log_target = np.zeros((D, D), np.float32), np.zeros((D, D), np.float32)
  for i in range(D):
    for d in range(i, D):
      log_draft[i, d] = np.log(draft[text[:i], d][text[d]])
      log_target[i, d] = np.log(target[i, text[:d]][text[d]])
  window = jnp.full(D, D)
  exact = ssmd.exact(jnp.array(log_draft), jnp.array(log_target), window, 1, counts=())
  return float(exact.log_prob)


print("text       exact   sampled")
total = 0.0
for text, times in found.items():
  p = np.exp(log_likelihood(text))
  total += p
  print(text, f"{p:8.4f}  {times / count:8.4f}")
  assert abs(p - times / count) < 5 * np.sqrt(p * (1 - p) / count)
print(f"sum of all: {total:.6f}")

# %% [markdown]
# The probabilities sum to 1 and agree with the frequencies within their noise. Without `counts=()` the same call also gives the joint distribution
# with the number of passes, and `ssmd.totals` the mean cost of long texts. `experiments/ssmd_text8/likelihood.py` computes
# it for trained models.
