# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Your own reveal rule
#
# After every forward, a rule chooses the masked places that become tokens. This one reveals every place that is nearly as sure as the surest one.

# %%
import jax
import jax.numpy as jnp

import sbdjax
from sbdjax import pytree


@pytree.dataclass
class Relative(sbdjax.decode.Rule):
  """Reveals the masked places with a confidence of at least `share` times the largest one."""

  share: float = 0.9

  def __call__(self, logits_BxTxV, masked_BxT):
    confidence_BxT = jnp.max(jax.nn.softmax(logits_BxTxV), axis=-1)
    confidence_BxT = jnp.where(masked_BxT, confidence_BxT, 0.0)
    best_Bx1 = jnp.max(confidence_BxT, axis=-1, keepdims=True)
    return masked_BxT & (confidence_BxT >= self.share * best_Bx1)


# %% [markdown]
# Look at it alone first: three masked places, of which the model is sure to different degrees.

# %%
logits = jnp.log(jnp.array([[[0.9, 0.1], [0.85, 0.15], [0.6, 0.4]]]))
Relative(0.9)(logits, jnp.array([[True, True, True]]))

# %% [markdown]
# ## Beside the entropy bound
#
# Both on the same prompts. `share` is a number of the rule, so it is traced: the loop compiles one program for each *class* of rules.

# %%
model = sbdjax.load_pretrained("stories260K-sbd")
judge = sbdjax.load_pretrained("stories260K")
prompts = ["Once upon a time", "Lily and Ben", "The big dog", "One day, a girl"]


def measure(rule):
  """Tokens per forward and judge NLL (nats per token)."""
  method = sbdjax.decode.SBD(block_size=8, rule=rule)
  outputs = list(sbdjax.generate(model, prompts, method, max_tokens=50))
  scores = sbdjax.score(judge, [o.result.prompt_tokens + o.tokens for o in outputs])
  tpf = sum(len(o.tokens) for o in outputs) / sum(o.nfe for o in outputs)
  return tpf, sum(s.nats for s in scores) / sum(s.tokens for s in scores)


curves = {
  "relative": [measure(Relative(share)) for share in (1.0, 0.9, 0.7, 0.5)],
  "entropy bound": [measure(sbdjax.decode.EBEntropy(gamma)) for gamma in (0.0, 0.2, 0.4, 0.8)],
}
for name, points in curves.items():
  print(f"{name:14s}", "  ".join(f"({tpf:.2f}, {nats:.3f})" for tpf, nats in points))

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
for (name, points), marker in zip(curves.items(), "os", strict=True):
  axes.plot(*zip(*points, strict=True), marker + "-", label=name)
axes.set(xlabel="tokens per forward", ylabel="judge NLL, nats per token")
_ = axes.legend()

# %% [markdown]
# Four prompts prove nothing: for a comparison with intervals, put the class into a file and let a sweep run it, with
# `decoder.rule=my_lab.rules:Relative`. [How to add a reveal rule](../howto/rule.md) has the whole file and its test.
