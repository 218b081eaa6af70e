"""Attention and the transformer of all families in float64 numpy, head by head."""

import math

import numpy as np


def softmax(x):
  x = np.exp(x - np.max(x, axis=-1, keepdims=True))
  return x / np.sum(x, axis=-1, keepdims=True)


def log_softmax(x):
  x = x - np.max(x, axis=-1, keepdims=True)
  return x - np.log(np.sum(np.exp(x), axis=-1, keepdims=True))


def attention(q_HxTxDh, k_KxSxDh, v_KxSxDh, visible_TxS):
  """One sequence; query head h reads kv head h // (H / K); a row that sees nothing gives zeros."""
  heads, length, dh = q_HxTxDh.shape
  group = heads // k_KxSxDh.shape[0]
  out = np.zeros((heads, length, v_KxSxDh.shape[-1]))
  for h in range(heads):
    for t in range(length):
      seen = np.flatnonzero(visible_TxS[t])
      if seen.size:
        scores = k_KxSxDh[h // group][seen] @ q_HxTxDh[h, t] / math.sqrt(dh)
        out[h, t] = softmax(scores) @ v_KxSxDh[h // group][seen]
  return out


def frequencies(head_dim, theta, scaling):
  """Rotary frequencies; `scaling` is None or llama-3.1's four numbers, branch by branch."""
  out = []
  for i in range(head_dim // 2):
    freq = 1.0 / theta ** (2 * i / head_dim)
    if scaling is not None:
      wavelength = 2 * math.pi / freq
      low = scaling.original_max_position / scaling.low_freq_factor
      high = scaling.original_max_position / scaling.high_freq_factor
      if wavelength > low:
        freq = freq / scaling.factor
      elif wavelength >= high:
        smooth = (scaling.original_max_position / wavelength - scaling.low_freq_factor) / (
          scaling.high_freq_factor - scaling.low_freq_factor
        )
        freq = (1 - smooth) * freq / scaling.factor + smooth * freq
    out.append(freq)
  return np.array(out)


def rotate(x_TxDh, positions_T, freq, interleaved):
  """Rotation as multiplication of complex numbers made of the paired channels."""
  turn = np.exp(1j * np.outer(positions_T, freq))
  if interleaved:
    z = (x_TxDh[:, 0::2] + 1j * x_TxDh[:, 1::2]) * turn
    out = np.empty_like(x_TxDh)
    out[:, 0::2], out[:, 1::2] = z.real, z.imag
    return out
  half = x_TxDh.shape[1] // 2
  z = (x_TxDh[:, :half] + 1j * x_TxDh[:, half:]) * turn
  return np.concatenate([z.real, z.imag], axis=1)


def rms_norm(x, scale, eps):
  return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * scale


def layer_norm(x, scale, bias, eps):
  mean = np.mean(x, axis=-1, keepdims=True)
  variance = np.mean(x * x, axis=-1, keepdims=True) - mean**2
  return (x - mean) / np.sqrt(variance + eps) * scale + bias


def norm(config, p, x):
  if config.norm == "layer":
    return layer_norm(x, p["scale"], p["bias"], config.norm_eps)
  return rms_norm(x, p["scale"], config.norm_eps)


def gelu(x):
  """x times the normal distribution function of x."""
  return x * np.vectorize(lambda t: 0.5 * math.erfc(-t / math.sqrt(2)))(x)


def gelu_tanh(x):
  return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def mlp(config, p, x):
  def project(name, y):
    return y @ p[f"{name}_kernel"] + p.get(f"{name}_bias", 0.0)

  if config.mlp == "swiglu":
    gate = project("gate", x)
    return project("down", gate / (1 + np.exp(-gate)) * project("up", x))
  act = {"gelu": gelu, "gelu_tanh": gelu_tanh}[config.mlp]
  return project("down", act(project("up", x)))


def embed(config, p, tokens_T, positions_T):
  x = p["embedding"][tokens_T]
  if config.token_dropout:
    ids = [t for t in tokens_T if t != config.pad_id]
    share = sum(t == config.mask_id for t in ids) / len(ids)
    for t, token in enumerate(tokens_T):
      x[t] *= 0.0 if token in (config.mask_id, config.pad_id) else 0.88 / (1 - share)
  if config.positions == "learned":
    x = x + p["position_embedding"][positions_T]
  return norm(config, p["embedding_norm"], x) if config.embedding_norm else x


def layer(config, p, x, rotated, visible_TxT):
  """One layer; `rotated`: two functions that turn the [T, Dh] channels of a head of queries, of
  keys, by position."""
  c, attn = config, p["attn"]
  post = c.norm_order == "post"
  h = x if post else norm(c, p["attn_norm"], x)
  q, k, v = (_heads(h, attn, name) for name in "qkv")
  if c.qk_norm:
    q = rms_norm(q, attn["q_norm"]["scale"], c.norm_eps)
    k = rms_norm(k, attn["k_norm"]["scale"], c.norm_eps)
  q, k = (np.stack([turn(head) for head in y]) for y, turn in zip((q, k), rotated, strict=True))
  out = attention(q, k, v, visible_TxT)
  for head in range(c.num_heads):
    x = x + out[head] @ attn["o_kernel"][head]
  x = x + attn.get("o_bias", 0.0)
  if post:
    x = norm(c, p["attn_norm"], x)
    return norm(c, p["mlp_norm"], x + mlp(c, p["mlp"], x))
  return x + mlp(c, p["mlp"], norm(c, p["mlp_norm"], x))


def stream(config, params, tokens_T, positions_T, visible_TxT):
  """The residual stream [T, D] of one sequence after the last layer, before the final norm."""
  c, p = config, float64(params)
  freq = np.array(c.rope_frequencies or frequencies(c.head_dim, c.rope_theta, c.rope_scaling))

  def rotated(head_TxDh):
    if c.positions != "rotary":
      return head_TxDh
    return rotate(head_TxDh, positions_T, freq, c.rope_interleaved)

  x = embed(c, p, np.asarray(tokens_T), np.asarray(positions_T))
  for n in range(c.num_layers):
    x = layer(c, nth(p["layers"], n), x, (rotated, rotated), visible_TxT)
  return x


def logits_of(config, params, x):
  """Logits [T, V] of a residual stream."""
  c, p = config, float64(params)
  x = norm(c, p["final_norm"], x) if c.norm_order == "pre" else x
  if c.mlm_head:
    x = norm(c, p["head_norm"], gelu(x @ p["dense_kernel"] + p["dense_bias"]))
  logits = x @ (p["embedding"] if c.tie_embeddings else p["head"]).T + p.get("head_bias", 0.0)
  logits[:, c.vocab_size - c.unused_rows :] = -1e30
  if c.mask_id is not None:
    logits[:, c.mask_id] = -1e30
  return logits


def forward(config, params, tokens_T, positions_T, visible_TxT):
  """Logits [T, V] of one sequence.

  Args:
    config: anything with the fields of a TransformerConfig.
    params: nested dict of arrays, layers stacked along axis 0.
  """
  return logits_of(config, params, stream(config, params, tokens_T, positions_T, visible_TxT))


def _heads(x_TxD, attn, name):
  """[heads, T, Dh]: the projection called `name`, one head at a time."""
  kernel = attn[f"{name}_kernel"]
  bias = attn.get(f"{name}_bias", np.zeros(kernel.shape[1:]))
  return np.stack([x_TxD @ kernel[:, h] + bias[h] for h in range(kernel.shape[1])])


def nth(tree, n):
  """Of stacked layers, the parameters of one."""
  return {k: nth(v, n) if isinstance(v, dict) else v[n] for k, v in tree.items()}


def float64(tree):
  return {
    k: float64(v) if isinstance(v, dict) else np.asarray(v, np.float64) for k, v in tree.items()
  }
