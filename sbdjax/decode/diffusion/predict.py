"""From logits to candidate tokens and the scores that decide which of them are revealed.

Noise is keyed by (row, position). Every position is revealed once, so no noise is used twice, and
what decides *when* it is revealed (confidence, margin, entropy of the raw softmax, a random order,
the position) never looks at the drawn token: a token is therefore distributed as if it had been
drawn with fresh noise by the forward that revealed it. It makes two decodings that pass through
the same states draw the same tokens bit for bit, however many forwards each of them took, and it
couples the drafts of one forward with the targets of the next: at temperature > 0 a draft is
accepted far more often than under fresh noise. (The public FreeDave implementations draw fresh
noise in every forward; the same seed then gives another text than static decoding.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from sbdjax.decode.sampling import Choose
from sbdjax.decode.schedule import Prediction
from sbdjax.decode.select import Order, confidence

# (float32 logits [B, D, W, V], key [B], position [B, W]) -> Prediction of [B, D, W]
Predict = Callable[[jax.Array, jax.Array, jax.Array], Prediction]

_TOKEN_NOISE, _ORDER_NOISE = 0, 1


def make_predict(choose: Choose, order: Order, excluded: Sequence[int]) -> Predict:
  """Candidates by `choose`, scores by `order`; tokens in `excluded` have probability exactly 0.

  The confidence is that of the raw softmax in float32 whatever temperature tokens are drawn at
  (LLaDA, Dream and SDAR take the probability of the *drawn* token, two of them after temperature
  and top-k, which makes it 1 everywhere at top_k = 1).
  """

  def predict(logits_BxDxWxV, key_B, position_BxW) -> Prediction:
    vocab_V = jnp.arange(logits_BxDxWxV.shape[-1])
    hidden_V = jnp.isin(vocab_V, jnp.asarray(list(excluded) or [-1]))
    logits = jnp.where(hidden_V, -1e30, logits_BxDxWxV.astype(jnp.float32))

    def keys(stream):
      per_row = lambda key, position_W: jax.vmap(jax.random.fold_in, (None, 0))(key, position_W)
      return jax.vmap(per_row)(
        jax.vmap(lambda k: jax.random.fold_in(k, stream))(key_B), position_BxW
      )

    # The same noise for every branch.
    over_branches = lambda fn: jax.vmap(jax.vmap(fn, (None, 0, None)), (0, 0, 0))
    draw = lambda keys_W, logits_WxV, _: jax.vmap(choose)(keys_W, logits_WxV)
    return Prediction(
      token=over_branches(draw)(keys(_TOKEN_NOISE), logits, position_BxW),
      confidence=confidence(logits),
      score=over_branches(lambda k, x, p: order(x, k, p))(
        keys(_ORDER_NOISE), logits, position_BxW
      ).astype(jnp.float32),
    )

  return predict
