"""A model of a few hundred parameters, a masked loss and addressable batches."""

from __future__ import annotations

import types

import jax
import jax.numpy as jnp
import numpy as np

VOCAB, D, F, N, B, L = 16, 8, 12, 2, 8, 6
MASK = VOCAB - 1


def _init(key):
  """Pseudo-random and dependent on the key, but far quicker to compile than real draws."""
  seed = jnp.sum(jax.random.key_data(key).astype(jnp.float32) % 97.0)

  def values(salt, *shape):
    index = jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape)
    return 0.5 * jnp.sin(12.9898 * index * index + 78.233 * salt + seed)

  return {
    "embedding": values(1, VOCAB, D),
    "layers": {
      "mlp": {"up_kernel": values(2, N, D, F), "down_kernel": values(3, N, F, D)},
      "norm": {"scale": jnp.ones((N, D))},
    },
  }


def _logits(params, tokens_BxL):
  def layer(x, p):
    h = jax.nn.gelu((x * p["norm"]["scale"]) @ p["mlp"]["up_kernel"])
    return x + h @ p["mlp"]["down_kernel"], None

  x, _ = jax.lax.scan(layer, params["embedding"][tokens_BxL], params["layers"])
  return x @ params["embedding"].T


LM = types.SimpleNamespace(init=_init, logits=_logits)


def masked_loss(lm, params, batch, key):
  """Cross-entropy of masked tokens; masks follow from (key, example_id)."""
  keys_B = jax.vmap(jax.random.fold_in, (None, 0))(key, batch["example_id"])
  masked = jax.vmap(lambda k: jax.random.uniform(k, (L,)) < 0.6)(keys_B)
  logits = lm.logits(params, jnp.where(masked, MASK, batch["tokens"]))
  nll = -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["tokens"][..., None], -1)[..., 0]
  weights = batch["weights"] * masked
  metrics = {"masked_share": (jnp.sum(masked * 1.0), jnp.asarray(masked.size, jnp.float32))}
  return jnp.sum(nll * weights), jnp.sum(weights), metrics


def make_batch(step: int, batch_size: int = B) -> dict[str, np.ndarray]:
  """The batch of update `step` (0 first); the rows' weights differ a lot."""
  rng = np.random.default_rng(step)
  share = np.linspace(0.1, 1.0, batch_size)[:, None]
  return {
    "tokens": rng.integers(0, MASK, (batch_size, L), dtype=np.int32),
    "weights": (rng.random((batch_size, L)) < share).astype(np.float32),
    "positions": np.tile(np.arange(L, dtype=np.int32), (batch_size, 1)),
    "segment_ids": np.ones((batch_size, L), np.int32),
    "example_id": np.arange(batch_size, dtype=np.int32) + step * batch_size,
  }


class Batches:
  """Endless batches with a position; `on_batch(step)` is called before batch `step` is given."""

  def __init__(self, on_batch=lambda step: None, edit=lambda step, batch: batch):
    self.step, self._on_batch, self._edit = 0, on_batch, edit

  def __next__(self):
    self._on_batch(self.step)
    batch = self._edit(self.step, make_batch(self.step))
    self.step += 1
    return batch

  def get_state(self):
    return {"step": self.step}

  def set_state(self, state):
    self.step = state["step"]
