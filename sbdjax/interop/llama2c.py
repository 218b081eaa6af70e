"""Reads llama2.c legacy checkpoints (`stories260K.bin`): Llama weights in one float32 file.

Layout (little endian): seven int32 (dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size,
seq_len; a negative vocab_size means an untied head), then float32 tensors, each stacked over
layers: embedding, attention norms, wq, wk, wv, wo, feed-forward norms, w1, w2, w3, final norm,
two tables of rotary cosines and sines (ignored: they follow from the shape), and the head if
untied. Matrices are stored [out, in]; rotary pairs are interleaved.
"""

from __future__ import annotations

import pathlib

import numpy as np

from sbdjax.errors import CheckpointError
from sbdjax.nn.transformer import TransformerConfig

_HEADER = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")


def read(path: str | pathlib.Path) -> tuple[TransformerConfig, dict]:
  """Reads one checkpoint.

  Returns:
    The configuration (no mask token) and the parameters as float32 numpy arrays.

  Raises:
    CheckpointError: the file cannot be read, its header makes no sense, or its size is not what
      the header announces.
  """
  path = pathlib.Path(path)
  try:
    data = path.read_bytes()
  except OSError as e:
    raise CheckpointError(f"cannot read {path}: {e.strerror or e}") from e
  if len(data) < 28:
    raise CheckpointError(f"{path} holds {len(data)} bytes, less than a llama2.c header (28)")
  header = dict(zip(_HEADER, np.frombuffer(data, "<i4", 7).tolist(), strict=True))
  h = header
  tied, vocab = h["vocab_size"] > 0, abs(h["vocab_size"])
  positive = (h["dim"], h["hidden_dim"], h["n_layers"], h["n_heads"], h["n_kv_heads"], h["seq_len"])
  sound = min(positive) >= 1 and max(positive) <= 1 << 24 and vocab >= 1
  # Whole heads of whole rotary pairs, shared evenly.
  if not sound or h["dim"] % (2 * h["n_heads"]) or h["n_heads"] % h["n_kv_heads"]:
    raise CheckpointError(f"{path} is no llama2.c legacy checkpoint: its header reads {header}")
  dim, n, dh = h["dim"], h["n_layers"], h["dim"] // h["n_heads"]
  shapes = {
    "embedding": (vocab, dim),
    "attn_norm": (n, dim),
    "wq": (n, h["n_heads"] * dh, dim),
    "wk": (n, h["n_kv_heads"] * dh, dim),
    "wv": (n, h["n_kv_heads"] * dh, dim),
    "wo": (n, dim, h["n_heads"] * dh),
    "mlp_norm": (n, dim),
    "w1": (n, h["hidden_dim"], dim),
    "w2": (n, dim, h["hidden_dim"]),
    "w3": (n, h["hidden_dim"], dim),
    "final_norm": (dim,),
    "rope_cos": (h["seq_len"], dh // 2),
    "rope_sin": (h["seq_len"], dh // 2),
  }
  if not tied:
    shapes["head"] = (vocab, dim)
  expected = 28 + 4 * sum(int(np.prod(s)) for s in shapes.values())
  if len(data) != expected:
    raise CheckpointError(
      f"{path} holds {len(data)} bytes where its header ({header}) announces {expected}: "
      "truncated, or not a llama2.c legacy checkpoint"
    )
  tensors, offset = {}, 28
  for name, shape in shapes.items():
    count = int(np.prod(shape))
    tensors[name] = np.frombuffer(data, "<f4", count, offset).reshape(shape)
    offset += 4 * count

  config = TransformerConfig(
    vocab_size=vocab,
    num_layers=n,
    d_model=dim,
    num_heads=h["n_heads"],
    num_kv_heads=h["n_kv_heads"],
    d_ff=h["hidden_dim"],
    max_seq_len=h["seq_len"],
    rope_interleaved=True,
    norm_eps=1e-5,
    tie_embeddings=tied,
  )
  return config, _to_params(tensors, config)


def _to_params(t: dict, c: TransformerConfig) -> dict:
  n, d, dh = c.num_layers, c.d_model, c.head_dim

  def in_out(w: np.ndarray) -> np.ndarray:  # [N, out, in] -> [N, in, out]
    return np.ascontiguousarray(np.swapaxes(w, 1, 2))

  params = {
    "embedding": np.array(t["embedding"]),
    "final_norm": {"scale": np.array(t["final_norm"])},
    "layers": {
      "attn_norm": {"scale": np.array(t["attn_norm"])},
      "attn": {
        "q_kernel": in_out(t["wq"]).reshape(n, d, c.num_heads, dh),
        "k_kernel": in_out(t["wk"]).reshape(n, d, c.num_kv_heads, dh),
        "v_kernel": in_out(t["wv"]).reshape(n, d, c.num_kv_heads, dh),
        "o_kernel": in_out(t["wo"]).reshape(n, c.num_heads, dh, d),
      },
      "mlp_norm": {"scale": np.array(t["mlp_norm"])},
      "mlp": {
        "gate_kernel": in_out(t["w1"]),
        "down_kernel": in_out(t["w2"]),
        "up_kernel": in_out(t["w3"]),
      },
    },
  }
  if not c.tie_embeddings:
    params["head"] = np.array(t["head"])
  return params
