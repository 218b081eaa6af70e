"""The causal blocks of self-speculative masked diffusion: a sigma-GPT over a trunk's hidden states.

Campbell et al. 2025 (arXiv:2510.03929), section 3 and Figure 1. The sequence is put in a generation
order sigma. Track j holds the token at sigma(j) and predicts the one at sigma(j + 1); it receives
the trunk's hidden states of both places, and both positions.
"""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from sbdjax import masks
from sbdjax.errors import UsageError
from sbdjax.kernels import backend
from sbdjax.nn import rope
from sbdjax.nn.config import TransformerConfig
from sbdjax.nn.layers import run_layers
from sbdjax.nn.linear import linear
from sbdjax.nn.parts import dense_init, make_norm

# (here, next) positions of a track -> that of the second half of its key.
KEY_POSITIONS = {
  # A query compares the place it predicts with the places of known tokens: the distance that
  # tells which of them matter. The paper's text models can compute it from position encodings in
  # their input, which a trunk with rotary positions does not have.
  "own": lambda here, following: here,
  # As the paper splits the channels (appendix E.3), for queries and keys alike. No pair of channels
  # then sees that distance, and the blocks learn much later to use the tokens.
  "next": lambda here, following: following,
}


@dataclasses.dataclass(frozen=True)
class HeadConfig:
  """The causal blocks on top of a bidirectional trunk.

  Attributes:
    num_layers: n_c, causal blocks; the trunk's `num_layers` is n_nc.
    output_residual: add the trunk's hidden state of the predicted place to their output, so that
      they only correct the draft (the paper's "output residual"; without it, its ablation).
    key_positions: what the second half of a key's channels turns with, a key of KEY_POSITIONS:
      "own" or "next". Queries turn with the position of the track's token in the first half and
      with the predicted one in the second.
  """

  num_layers: int = 1
  output_residual: bool = True
  key_positions: str = "own"

  def __post_init__(self) -> None:
    if self.key_positions not in KEY_POSITIONS:
      raise UsageError(
        f"head.key_positions={self.key_positions!r}: choose one of {tuple(KEY_POSITIONS)}"
      )
    if not 1 <= self.num_layers <= 1 << 12:
      raise UsageError(f"head.num_layers must be at least 1, at most 4096, got {self.num_layers}")


def layer_config(trunk: TransformerConfig, head: HeadConfig) -> TransformerConfig:
  """The trunk's own block, `head.num_layers` times, pre-norm and with positions as rotary channels.

  The stream of a post-norm trunk (BERT) is its output after its last norm; no other norm follows
  before the map to the vocabulary. The blocks on it are pre-norm all the same: they start untrained,
  when post-norm layers are delicate (Xiong et al. 2020, arXiv:2002.04745).

  Channels are rotated in neighbouring pairs, so that the first half of a query's channels turns
  with the one position and the second half with the other, as the paper has it (appendix E.3).

  Raises:
    UsageError: heads whose channels do not make two halves of pairs.
  """
  if trunk.head_dim % 4:
    raise UsageError(
      f"model.head_dim={trunk.head_dim} must be a multiple of 4: the causal blocks rotate half of "
      "the channels by the position of a token and half by that of the next one"
    )
  return dataclasses.replace(
    trunk,
    num_layers=head.num_layers,
    positions="rotary",
    rope_interleaved=True,
    rope_scaling=None,
    rope_frequencies=None,
    token_dropout=False,
    pad_id=None,
    norm_order="pre",
    embedding_norm=False,
  )


def two_positions(
  first_BxL: jax.Array, second_BxL: jax.Array, head_dim: int, theta: float
) -> tuple[jax.Array, jax.Array]:
  """(cos, sin), float32 [B, 1, L, head_dim / 2]: rotations of half a head by each position."""
  freq = rope.frequencies(head_dim // 2, theta)
  halves = zip(rope.rotation(first_BxL, freq), rope.rotation(second_BxL, freq), strict=True)
  cos, sin = (jnp.concatenate(pair, axis=-1) for pair in halves)
  return cos, sin


class SigmaHead(nn.Module):
  """What the causal blocks add to (or, without residual, put in place of) the trunk's stream.

  How a track's three inputs are joined is not told in the paper's text: here each is normed, and
  one linear map takes their concatenation to the model's width. The output map starts at zero
  where it adds to the trunk's stream, so that the target starts out equal to the draft.

  Attributes:
    config: of the causal layers; see `layer_config`.
    head: see `HeadConfig`.
    attention: as of `Transformer`.
  """

  config: TransformerConfig
  head: HeadConfig
  attention: str = "xla"

  @nn.compact
  def __call__(
    self,
    embedded_BxLxD: jax.Array,
    here_BxLxD: jax.Array,
    next_BxLxD: jax.Array,
    here_BxL: jax.Array,
    next_BxL: jax.Array,
    keys_B: jax.Array | None = None,
  ) -> jax.Array:
    """One pass over sequences in generation order.

    Args:
      embedded_BxLxD: the embedded token of each track.
      here_BxLxD, next_BxLxD: the trunk's stream at the track's place and at the one it predicts.
      here_BxL, next_BxL: int32 positions of both.
      keys_B: of dropout, one per row; None: nothing is dropped.

    Returns:
      [B, L, D]: of each track, for the place it predicts.
    """
    c = self.config
    norm = make_norm(c, name="stream_norm")
    inputs = (make_norm(c, name="token_norm")(embedded_BxLxD), norm(here_BxLxD), norm(next_BxLxD))
    mix = self.param(
      "mix_kernel", dense_init(3 * c.d_model), (3 * c.d_model, c.d_model), c.param_dtype
    )
    x_BxLxD = linear(jnp.concatenate(inputs, axis=-1), mix.astype(c.compute_dtype), c.product_dtype)
    length = here_BxL.shape[1]
    of_keys_BxL = KEY_POSITIONS[self.head.key_positions](here_BxL, next_BxL)
    seconds = (next_BxL, of_keys_BxL)
    rotary = tuple(two_positions(here_BxL, x, c.head_dim, c.rope_theta) for x in seconds)
    attention = backend.get(self.attention, c.compute_dtype, c.head_dim)
    plan = attention.plan(masks.Causal(), length, length)
    x_BxLxD, _ = run_layers(
      self, c, attention.attend, x_BxLxD, keys_B=keys_B, cached_kv=None, rotary=rotary, plan=plan
    )
    init = nn.initializers.zeros if self.head.output_residual else dense_init(c.d_model)
    out = self.param("out_kernel", init, (c.d_model, c.d_model), c.param_dtype)
    return linear(
      make_norm(c, name="out_norm")(x_BxLxD), out.astype(c.compute_dtype), c.product_dtype
    )
