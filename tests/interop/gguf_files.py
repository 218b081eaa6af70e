"""GGUF files of small models, written as llama.cpp's convert_hf_to_gguf.py writes them.

The names are those of the package `gguf` itself, the order of rows that of `LlamaModel.permute`.
"""

import json

import gguf
import numpy as np
import safetensors.numpy

ARCHITECTURES = {
  "LlamaForCausalLM": gguf.MODEL_ARCH.LLAMA,
  "Qwen2ForCausalLM": gguf.MODEL_ARCH.QWEN2,
  "Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3,
  "GPT2LMHeadModel": gguf.MODEL_ARCH.GPT2,
}


def permute(weights, heads):
  """Hugging Face's order of the rows of q or k -> llama.cpp's."""
  halves = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
  return halves.swapaxes(1, 2).reshape(weights.shape)


def rope_factors(settings):
  """What llama-3's rescaling divides each rotary frequency by."""
  scaling = settings["rope_scaling"]
  dim = settings.get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"]
  low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
  context, factors = scaling["original_max_position_embeddings"], []
  for i in range(0, dim, 2):
    wavelength = 2 * np.pi * settings["rope_theta"] ** (i / dim)
    if wavelength < context / high:
      factors.append(1.0)
    elif wavelength > context / low:
      factors.append(scaling["factor"])
    else:
      smooth = (context / wavelength - low) / (high - low)
      factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
  return np.array(factors, np.float32)


def set_shape(writer, settings):
  """The architecture's own keys."""
  if "n_embd" in settings:
    writer.add_block_count(settings["n_layer"])
    writer.add_context_length(settings["n_positions"])
    writer.add_embedding_length(settings["n_embd"])
    writer.add_feed_forward_length(settings.get("n_inner") or 4 * settings["n_embd"])
    writer.add_head_count(settings["n_head"])
    writer.add_layer_norm_eps(settings["layer_norm_epsilon"])
    return
  heads, width = settings["num_attention_heads"], settings["hidden_size"]
  writer.add_block_count(settings["num_hidden_layers"])
  writer.add_context_length(settings["max_position_embeddings"])
  writer.add_embedding_length(width)
  writer.add_feed_forward_length(settings["intermediate_size"])
  writer.add_head_count(heads)
  writer.add_head_count_kv(settings["num_key_value_heads"])
  writer.add_rope_freq_base(settings["rope_theta"])
  writer.add_layer_norm_rms_eps(settings["rms_norm_eps"])
  head_dim = settings.get("head_dim") or width // heads
  writer.add_rope_dimension_count(head_dim)
  if head_dim * heads != width:
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)


def convert(folder, path, dtype=gguf.GGMLQuantizationType.F32, more=lambda writer: None, skip=()):
  """Writes the safetensors of a Hugging Face folder as a GGUF file.

  Args:
    dtype: of the matrices; norms and biases are float32, as llama.cpp leaves them.
    more: writes further keys and tensors.
    skip: names of tensors to leave out.
  """
  settings = json.loads((folder / "config.json").read_text())
  arch = ARCHITECTURES[settings["architectures"][0]]
  is_gpt2 = arch == gguf.MODEL_ARCH.GPT2
  layers = settings["n_layer" if is_gpt2 else "num_hidden_layers"]
  names = gguf.get_tensor_name_map(arch, layers)
  writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
  set_shape(writer, settings)
  if settings.get("eos_token_id") is not None:
    eos = settings["eos_token_id"]
    writer.add_eos_token_id(eos if isinstance(eos, int) else eos[0])
    if not isinstance(eos, int) and len(eos) > 1:
      writer.add_eot_token_id(eos[1])
  tensors = {}
  for file in sorted(folder.glob("*.safetensors")):
    tensors |= safetensors.numpy.load_file(file)
  for name, x in tensors.items():
    if arch == gguf.MODEL_ARCH.LLAMA:
      if ".q_proj." in name:
        x = permute(x, settings["num_attention_heads"])
      elif ".k_proj." in name:
        x = permute(x, settings["num_key_value_heads"])
    if is_gpt2 and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
      x = x.T
    theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert theirs is not None, name
    if theirs not in skip:
      kind = dtype if x.ndim > 1 else gguf.GGMLQuantizationType.F32
      add(writer, theirs, x, kind)
  if settings.get("rope_scaling"):
    add(writer, "rope_freqs.weight", rope_factors(settings))
  more(writer)
  finish(writer)
  return path


def add(writer, name, x, dtype=gguf.GGMLQuantizationType.F32):
  """One tensor, quantized."""
  x = np.ascontiguousarray(x, np.float32)
  writer.add_tensor(name, gguf.quantize(x, dtype), raw_dtype=dtype)


def finish(writer):
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()


def add_metadata(writer, metadata):
  """Keys as they are, but for the end of text that `convert` writes."""
  for key, value in metadata.items():
    kinds = {str: writer.add_string, list: writer.add_array, int: writer.add_uint32}
    if not key.endswith("eos_token_id"):
      (kinds | {bool: writer.add_bool})[type(value)](key, value)
