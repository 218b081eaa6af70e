"""The recorded networks of Jacobi decoding and training."""

import json
import pathlib

import numpy as np

from sbdjax.interop import load_pretrained
from sbdjax.interop.pretrained import Pretrained
from tests.helpers import golden_file


def open_recorded_qwen2(weights: pathlib.Path, folder: pathlib.Path) -> Pretrained:
  """A Qwen2 from an .npz under its Hugging Face names; `folder` becomes its checkpoint."""
  from safetensors.numpy import save_file

  recorded = golden_file("jacobi", "goldens.json")
  shape = json.loads(recorded.read_text())["config"]
  config = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": shape["vocab"],
    "hidden_size": shape["hidden"],
    "intermediate_size": shape["inter"],
    "num_hidden_layers": shape["layers"],
    "num_attention_heads": shape["heads"],
    "num_key_value_heads": shape["kv_heads"],
    "rope_theta": shape["rope_theta"],
    "rms_norm_eps": shape["rms_eps"],
    "tie_word_embeddings": shape["tie"],
    "max_position_embeddings": 256,
  }
  with np.load(weights) as arrays:
    save_file(dict(arrays), folder / "model.safetensors")
  (folder / "config.json").write_text(json.dumps(config))
  return load_pretrained(folder)
