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

import jax
import jax.numpy as jnp

from sbdjax import pytree
from sbdjax.decode import base
from sbdjax.decode.diffusion.schedule import Prediction
from sbdjax.decode.method import Part
from sbdjax.decode.scores import ORDERS, check_order, confidence
from sbdjax.decode.tokens import Greedy, TokenSampler
from sbdjax.errors import UsageError

_TOKEN_NOISE, _ORDER_NOISE = 0, 1


@pytree.dataclass
class Predictor(Part):
  """Takes candidate tokens from logits and ranks positions.

  The confidence is that of the raw softmax in float32 whatever temperature tokens are drawn at
  (LLaDA, Dream and SDAR take the probability of the *drawn* token, two of them after temperature
  and top-k, which makes it 1 everywhere at top_k = 1).

  Attributes:
    token: token choice.
    score: what positions of a block are ranked by, a key of `scores.ORDERS`.
    suppress: tokens that are never chosen, beside the mask token: their probability is exactly 0.

  Raises:
    UsageError: an unknown score.
  """

  token: TokenSampler = Greedy()
  score: str = pytree.static(default="confidence")
  suppress: tuple[int, ...] = pytree.static(default=())

  def __post_init__(self) -> None:
    check_order(self.score)

  def check(self, vocab_size: int) -> None:
    """Raises UsageError where `suppress` names a token that the model does not know."""
    for token in self.suppress:
      if not 0 <= token < vocab_size:
        raise UsageError(
          f"decoder.suppress names token {token}; the model knows 0..{vocab_size - 1}"
        )

  def __call__(
    self, logits_BxDxWxV: jax.Array, key_B: jax.Array, position_BxW: jax.Array
  ) -> Prediction:
    """Predicts the positions of a window, in each of D drafts of it.

    Args:
      logits_BxDxWxV: float32, the mask token left out.
      key_B: one key per row.
      position_BxW: int32, the positions of the window.

    Returns:
      A Prediction of [B, D, W]; every draft has the same noise.
    """
    logits = suppress(logits_BxDxWxV.astype(jnp.float32), self.suppress)
    over_drafts = lambda fn: jax.vmap(jax.vmap(fn, (None, 0, None)), (0, 0, 0))
    draw = lambda key_W, logits_WxV, _: jax.vmap(self.token)(key_W, logits_WxV)
    rank = lambda key_W, logits_WxV, position_W: ORDERS[self.score](logits_WxV, key_W, position_W)
    return Prediction(
      token=over_drafts(draw)(_keys(key_B, _TOKEN_NOISE, position_BxW), logits, position_BxW),
      confidence=confidence(logits),
      score=over_drafts(rank)(
        _keys(key_B, _ORDER_NOISE, position_BxW), logits, position_BxW
      ).astype(jnp.float32),
    )


def suppress(logits: jax.Array, tokens: tuple[int, ...]) -> jax.Array:
  """The logits [..., V] with the probability of `tokens` exactly 0."""
  if not tokens:
    return logits
  hidden_V = jnp.isin(jnp.arange(logits.shape[-1]), jnp.asarray(tokens))
  return jnp.where(hidden_V, -1e30, logits)


def _keys(key_B: jax.Array, stream: int, position_BxW: jax.Array) -> jax.Array:
  """One key per place [B, W] of one of a row's streams of noise."""
  stream_B = jax.vmap(lambda key: jax.random.fold_in(key, stream))(key_B)
  return base.position_keys(stream_B, position_BxW)
