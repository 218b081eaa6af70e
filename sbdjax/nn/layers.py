"""The layers of every network, and the two ways to run them: scanned, or one after the other.

Scanned layers are stacked parameters with a leading axis N, so compile time does not grow with
depth. On a CPU a scan copies the weights of each layer before it multiplies by them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from sbdjax.kernels import parts
from sbdjax.nn import rope
from sbdjax.nn.adapter import adapted
from sbdjax.nn.config import REMAT_POLICIES, TransformerConfig
from sbdjax.nn.dropout import drop_channels, layer_keys
from sbdjax.nn.linear import Weight, linear, products, weight
from sbdjax.nn.parts import MLP, RMSNorm, dense_init, make_norm

# ((k, ...), (v, ...)) of a cache, each [N, B, K, S, Dh]; the slots of several follow one another.
CachedKV = tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]
Norm = Callable[[jax.Array], jax.Array]
Attend = Callable[[jax.Array, tuple[parts.KVPart, ...], tuple[parts.KVPart, ...], Any], jax.Array]


class Attention(nn.Module):
  """Grouped-query attention over [cache | new tokens], with rotary positions where given.

  Attributes:
    attend: `kernels.backend.Backend.attend` of the backend that made the plan.
    num_open: how many tokens, the last ones, an adapter acts on.
  """

  config: TransformerConfig
  attend: Attend
  num_open: int = 0

  def _projections(self, x_BxTxD: jax.Array) -> list[jax.Array]:
    """q, k, v, [B, heads, T, Dh] each: kernels [D, heads, Dh]."""
    c, found = self.config, []
    heads_of = {"q": c.num_heads, "k": c.num_kv_heads, "v": c.num_kv_heads}
    init, shape = dense_init(c.d_model), lambda heads: (c.d_model, heads, c.head_dim)
    weights = [Weight(f"{name}_kernel", init, shape(heads)) for name, heads in heads_of.items()]
    several = products(self, x_BxTxD, weights, c.param_dtype, c.product_dtype)
    for (name, heads), y in zip(heads_of.items(), several, strict=True):
      y = adapted(self, c.adapter, name, x_BxTxD, y, self.num_open)
      if c.qkv_bias:
        bias = self.param(f"{name}_bias", nn.initializers.zeros, shape(heads)[1:], c.param_dtype)
        y = y + bias.astype(y.dtype).reshape(-1)
      found.append(jnp.swapaxes(y.reshape(*y.shape[:-1], heads, c.head_dim), 1, 2))
    return found

  @nn.compact
  def __call__(
    self, x_BxTxD: jax.Array, layer: jax.Array, cached_kv: Any, rotary: Any, plan: Any
  ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    c = self.config
    q, k, v = self._projections(x_BxTxD)
    if c.qk_norm:
      q, k = RMSNorm(c, name="q_norm")(q), RMSNorm(c, name="k_norm")(k)
    if rotary is not None:
      q = rope.rotate(q, rotary[0], c.rope_interleaved)
      k = rope.rotate(k, rotary[1], c.rope_interleaved)
    old_k, old_v = ((), ()) if cached_kv is None else cached_kv
    keys: tuple[parts.KVPart, ...] = (*(parts.StackedLayer(x, layer) for x in old_k), k)
    values: tuple[parts.KVPart, ...] = (*(parts.StackedLayer(x, layer) for x in old_v), v)
    out = self.attend(q, keys, values, plan)
    out = jnp.swapaxes(out, 1, 2).reshape(*x_BxTxD.shape[:-1], -1)
    fan_in = c.num_heads * c.head_dim
    init, shape = dense_init(fan_in * 2 * c.num_layers), (c.num_heads, c.head_dim, c.d_model)
    y = linear(out, weight(self, "o_kernel", init, shape, c.param_dtype), c.product_dtype)
    out = adapted(self, c.adapter, "o", out, y, self.num_open)
    if c.o_bias:
      bias = self.param("o_bias", nn.initializers.zeros, (c.d_model,), c.param_dtype)
      out = out + bias.astype(out.dtype)
    return out, (k, v)


def norms_around(config: TransformerConfig, norm: Norm) -> tuple[Norm, Norm]:
  """(before, after): `norm` on that side of a sublayer where `norm_order` has it, else nothing.

  after(x + sublayer(before(x))) is x + sublayer(norm(x)), or norm(x + sublayer(x)).
  """
  return (norm, _as_it_is) if config.norm_order == "pre" else (_as_it_is, norm)


def _as_it_is(x: jax.Array) -> jax.Array:
  return x


class Layer(nn.Module):
  """Residual layer, its norms by `norm_order`; returns the hidden states and this forward's k and v."""

  config: TransformerConfig
  keep_kv: bool
  attend: Attend
  num_open: int = 0

  @nn.compact
  def __call__(
    self, x_BxTxD: jax.Array, of_layer: Any, cached_kv: Any, rotary: Any, plan: Any
  ) -> tuple[jax.Array, tuple[jax.Array, jax.Array] | None]:
    c, (layer, keys_B) = self.config, of_layer
    before, after = norms_around(c, make_norm(c, name="attn_norm"))
    attended, kv = Attention(c, self.attend, self.num_open, name="attn")(
      before(x_BxTxD), layer, cached_kv, rotary, plan
    )
    x_BxTxD = after(x_BxTxD + drop_channels(attended, c.dropout, keys_B, 0))
    before, after = norms_around(c, make_norm(c, name="mlp_norm"))
    transformed = MLP(c, self.num_open, name="mlp")(before(x_BxTxD))
    x_BxTxD = after(x_BxTxD + drop_channels(transformed, c.dropout, keys_B, 1))
    return x_BxTxD, (kv if self.keep_kv else None)


def stack(config: TransformerConfig) -> Any:
  """The module class of `config.num_layers` layers, scanned: parameters with a leading axis N.

  Called as
  `stack(config)(config, keep_kv, attend, num_open, name=...)` on
  `(x_BxTxD, of_layers, cached_kv, rotary, plan)`; `of_layers` from `per_layer`; `rotary` are the rotations (`rope.rotation`) of queries and of keys,
  or None; `attend` and `plan` are of one attention backend.
  """
  layer = Layer
  if config.remat != "none":
    layer = nn.remat(Layer, policy=REMAT_POLICIES[config.remat], prevent_cse=False)
  return nn.scan(
    layer,
    variable_axes={"params": 0},
    split_rngs={"params": True},
    in_axes=(0, nn.broadcast, nn.broadcast, nn.broadcast),
    length=config.num_layers,
    # The check traces the layer once more and takes kernels, which JAX never removes as unused, for
    # something that depends on the layer.
    check_constancy_invariants=False,
  )


def per_layer(
  config: TransformerConfig, keys_B: jax.Array | None
) -> tuple[jax.Array, jax.Array | None]:
  """(index, dropout keys) of every layer; the keys are None where `keys_B` is."""
  return jnp.arange(config.num_layers, dtype=jnp.int32), layer_keys(keys_B, config.num_layers)


def run_layers(
  module: nn.Module,
  config: TransformerConfig,
  attend: Attend,
  x_BxTxD: jax.Array,
  *,
  keys_B: jax.Array | None,
  cached_kv: CachedKV | None,
  rotary: Any,
  plan: Any,
  num_open: int = 0,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array] | None]:
  """Runs the layers that `module` holds as "layers", in either form.

  Stacked ones (leaves [N, ...], as `init` makes them) are scanned. A tuple of N layers, as
  `nn.prepare` makes it, is run one after the other; nothing is rematerialised then.

  Args:
    module: whose parameters the layers are.
    attend: of the backend that made `plan`.
    keys_B: of dropout, one per row; None: nothing is dropped.
    cached_kv: as of `Transformer`; None: no keys and values are returned.
    rotary: rotations (`rope.rotation`) of queries and of keys, or None.
    num_open: how many tokens, the last ones, an adapter acts on.

  Returns:
    The residual stream [B, T, D] (normed, if `norm_order` is "post"), and None or (k, v), each
    [N, B, K, T, Dh].
  """
  of_layers, keep_kv = per_layer(config, keys_B), cached_kv is not None
  layers: Any = module.get_variable("params", "layers")
  if not isinstance(layers, tuple):
    scanned = stack(config)(config, keep_kv, attend, num_open, name="layers")
    return scanned(x_BxTxD, of_layers, cached_kv, rotary, plan)
  layer = Layer(config, keep_kv, attend, num_open, parent=None)

  @jax.jit  # traced once for all layers
  def run(params: Any, x_BxTxD: jax.Array, of_layer: Any) -> Any:
    return layer.apply({"params": params}, x_BxTxD, of_layer, cached_kv, rotary, plan)

  kv = []
  for n, params in enumerate(layers):
    x_BxTxD, kv_n = run(params, x_BxTxD, jax.tree.map(lambda x, n=n: x[n], of_layers))
    kv.append(kv_n)
  if not keep_kv:
    return x_BxTxD, None
  k, v = (known_after(x_BxTxD, jnp.stack(new)) for new in zip(*kv, strict=True))
  return x_BxTxD, (k, v)


def over_arrays(attend: Attend) -> Attend:
  """`attend` of the arrays that the layers of a cache are, which makes it differentiable.

  Without it some backends read a cache from the buffer of all layers, tile by tile, and have no
  gradient then. A cache that is read once costs little as a copy.
  """

  def run(q: jax.Array, keys: Any, values: Any, plan: Any) -> jax.Array:
    return attend(q, tuple(map(parts.read, keys)), tuple(map(parts.read, values)), plan)

  return run


def known_after(x: jax.Array, value: jax.Array) -> jax.Array:
  """`value`, which XLA cannot know before `x`.

  Keys and values that depend on the last layer are written to the cache after every layer has read
  it, hence in place. Otherwise XLA on CPU copies the whole cache twice per forward: it drops
  `optimization_barrier` before it decides that.
  """
  one = x[(0,) * x.ndim]
  never = jnp.isnan(one) & ~jnp.isnan(one)
  return jnp.where(never, jnp.zeros_like(value), value)
