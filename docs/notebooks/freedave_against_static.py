# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # FreeDave against static decoding
#
# FreeDave gives the text of static decoding in fewer forwards ([method](../methods/freedave.md)). For that a diffusion model is needed. Here one is
# trained for half a minute, so its texts are poor; that the two texts are equal does not depend on it.

# %%
import tempfile

import sbdjax

config = sbdjax.presets.load("stories_block_diffusion:4")
config.train.steps, config.train.eval_every, config.optim.warmup_steps = 60, 0, 5
workdir = tempfile.mkdtemp()
_ = sbdjax.train(config, workdir)
model = sbdjax.load_pretrained(workdir)
print(model.generation.attention, model.generation.block_size)

# %% [markdown]
# ## The same text in fewer forwards

# %%
from sbdjax.decode import FreeDave, Static

prompts = ["Once upon a time", "Lily and Ben", "The big dog"]
methods = {
  "static": Static(),
  "FreeDave, 4 drafts": FreeDave(draft_steps=4),
  "FreeDave, 4 drafts, eager": FreeDave(draft_steps=4, eager=True, reuse_verified_kv=True),
}
outputs = {
  name: list(sbdjax.generate(model, prompts, method, max_tokens=48))
  for name, method in methods.items()
}
for name, found in outputs.items():
  forwards = sum(o.nfe for o in found)
  width = sum(o.result.query_tokens for o in found)
  same = [o.tokens for o in found] == [o.tokens for o in outputs["static"]]
  print(f"{name:28s}{forwards:6.0f} forwards{width:8d} query tokens   same text: {same}")
  assert same

# %% [markdown]
# Fewer forwards, more query tokens: drafts are run beside each other. What that is worth in seconds depends on the device; see
# [how numbers are counted](../counting.md). The recorded comparison, on a model trained for longer and with every setting, is in
# [experiments/freedave_stories260k](../../experiments/freedave_stories260k/README.md).
