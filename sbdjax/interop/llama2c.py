"""llama2.c legacy checkpoints (`stories260K.bin`): Llama weights in one float32 file.

Layout (little endian): seven int32 (dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size,
seq_len; a negative vocab_size means an untied head), then float32 tensors, each stacked over
layers: embedding, attention norms, wq, wk, wv, wo, feed-forward norms, w1, w2, w3, final norm,
two tables of rotary cosines and sines (not read: they follow from the shape), and the head if
untied. Matrices are stored [out, in]; rotary pairs are interleaved.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from sbdjax.data.files import write_atomically
from sbdjax.errors import CheckpointError, UsageError
from sbdjax.foreign import regular
from sbdjax.nn import rope
from sbdjax.nn.transformer import TransformerConfig

_HEADER = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")
# Fields of our configuration that no file has to say: rotary pairs are reordered, numbers widened.
_NOT_WRITTEN = (
  "rope_interleaved",
  "param_dtype",
  "compute_dtype",
  "product_dtype",
  "remat",
  "dropout",
)


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
    data = regular(path).read_bytes()
  except OSError as e:
    raise CheckpointError(f"cannot read {path}: {e.strerror or e}") from e
  if len(data) < 28:
    raise CheckpointError(f"{path} holds {len(data)} bytes, less than a llama2.c header (28)")
  header = dict(zip(_HEADER, np.frombuffer(data, "<i4", 7).tolist(), strict=True))
  h = header
  positive = (h["dim"], h["hidden_dim"], h["n_layers"], h["n_heads"], h["n_kv_heads"], h["seq_len"])
  sound = min(positive) >= 1 and max(positive) <= 1 << 24 and h["vocab_size"] != 0
  # Whole heads of whole rotary pairs, shared evenly.
  if not sound or h["dim"] % (2 * h["n_heads"]) or h["n_heads"] % h["n_kv_heads"]:
    raise CheckpointError(f"{path} is no llama2.c legacy checkpoint: its header reads {header}")
  config = _config(header)
  shapes = _shapes(config)
  expected = 28 + 4 * sum(math.prod(s) for s in shapes.values())
  if len(data) != expected:
    raise CheckpointError(
      f"{path} holds {len(data)} bytes where its header ({header}) announces {expected}: "
      "truncated, or not a llama2.c legacy checkpoint"
    )
  tensors, offset = {}, 28
  for name, shape in shapes.items():
    count = math.prod(shape)
    tensors[name] = np.frombuffer(data, "<f4", count, offset).reshape(shape)
    offset += 4 * count
  return config, _to_params(tensors, config)


def write(path: str | pathlib.Path, config: TransformerConfig, params: Mapping[str, Any]) -> None:
  """Writes one checkpoint, in float32, that `read` and llama2.c open; whole or not at all.

  Args:
    path: of the file.
    config: a plain Llama without mask token; rotary pairs (i, i + Dh/2) become interleaved ones.
    params: as `LM.init` makes them, arrays of numpy or JAX.

  Raises:
    UsageError: a network that run.c does not have.
    DataError: the file cannot be written.
  """
  c = config
  sizes = (c.d_model, c.d_ff, c.num_layers, c.num_heads, c.num_kv_heads)
  signed = c.vocab_size if c.tie_embeddings else -c.vocab_size
  header = dict(zip(_HEADER, (*sizes, signed, c.max_seq_len), strict=True))
  _check_plain(config, _config(header))

  def fill(file: IO[bytes]) -> None:
    file.write(np.asarray(list(header.values()), "<i4").tobytes())
    tensors = _from_params(params, config)
    for name in _shapes(config):
      file.write(np.ascontiguousarray(tensors[name], "<f4").tobytes())

  write_atomically(path, fill)


def _check_plain(config: TransformerConfig, plain: TransformerConfig) -> None:
  """Raises UsageError where `config` is another network than `plain`, what its header says."""
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    if field.name not in _NOT_WRITTEN and value != getattr(plain, field.name):
      raise UsageError(
        f"llama2.c has no {field.name}={value!r}: its network is Llama's with "
        f"{field.name}={getattr(plain, field.name)!r}"
      )


def _config(header: Mapping[str, int]) -> TransformerConfig:
  return TransformerConfig(
    vocab_size=abs(header["vocab_size"]),
    num_layers=header["n_layers"],
    d_model=header["dim"],
    num_heads=header["n_heads"],
    num_kv_heads=header["n_kv_heads"],
    d_ff=header["hidden_dim"],
    max_seq_len=header["seq_len"],
    rope_interleaved=True,
    norm_eps=1e-5,
    tie_embeddings=header["vocab_size"] > 0,
  )


def _shapes(c: TransformerConfig) -> dict[str, tuple[int, ...]]:
  """The tensors of a file, in its order."""
  n, d, dh = c.num_layers, c.d_model, c.head_dim
  shapes: dict[str, tuple[int, ...]] = {
    "embedding": (c.vocab_size, d),
    "attn_norm": (n, d),
    "wq": (n, c.num_heads * dh, d),
    "wk": (n, c.num_kv_heads * dh, d),
    "wv": (n, c.num_kv_heads * dh, d),
    "wo": (n, d, c.num_heads * dh),
    "mlp_norm": (n, d),
    "w1": (n, c.d_ff, d),
    "w2": (n, d, c.d_ff),
    "w3": (n, c.d_ff, d),
    "final_norm": (d,),
    "rope_cos": (c.max_seq_len, dh // 2),
    "rope_sin": (c.max_seq_len, dh // 2),
  }
  if not c.tie_embeddings:
    shapes["head"] = (c.vocab_size, d)
  return shapes


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


def _from_params(params: Mapping[str, Any], c: TransformerConfig) -> dict[str, np.ndarray]:
  """The inverse of `_to_params`, and the rotary tables, which old versions of run.c read."""
  layers = params["layers"]
  attn, mlp = layers["attn"], layers["mlp"]
  n, d = c.num_layers, c.d_model
  turn = (lambda x: x) if c.rope_interleaved else rope.to_interleaved_pairs

  def out_in(w: Any, inputs: int = d) -> np.ndarray:  # [N, in..., out...] -> [N, out, in]
    return np.swapaxes(np.asarray(w).reshape(n, inputs, -1), 1, 2)

  angles = np.outer(np.arange(c.max_seq_len), rope.frequencies_of(c))
  tensors = {
    "embedding": params["embedding"],
    "attn_norm": layers["attn_norm"]["scale"],
    "wq": out_in(turn(np.asarray(attn["q_kernel"]))),
    "wk": out_in(turn(np.asarray(attn["k_kernel"]))),
    "wv": out_in(attn["v_kernel"]),
    "wo": out_in(attn["o_kernel"], c.num_heads * c.head_dim),
    "mlp_norm": layers["mlp_norm"]["scale"],
    "w1": out_in(mlp["gate_kernel"]),
    "w2": out_in(mlp["down_kernel"], c.d_ff),
    "w3": out_in(mlp["up_kernel"]),
    "final_norm": params["final_norm"]["scale"],
    "rope_cos": np.cos(angles),
    "rope_sin": np.sin(angles),
  }
  if not c.tie_embeddings:
    tensors["head"] = params["head"]
  return tensors
