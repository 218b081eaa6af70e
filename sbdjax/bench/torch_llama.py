"""The same weights in PyTorch's `transformers`, as the yardstick of AR decoding.

Both packages are optional; nothing else imports them.
"""

from __future__ import annotations

import functools
import importlib.util
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sbdjax.bench.decoding import DecodingTiming
from sbdjax.bench.timing import summarise
from sbdjax.errors import UsageError
from sbdjax.nn import rope
from sbdjax.nn.transformer import TransformerConfig


def is_available() -> bool:
  """Whether torch and transformers are installed."""
  return all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


def state_dict(config: TransformerConfig, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
  """Our parameters under Hugging Face's names, in its orientation [out, in], float32.

  A mask token that is the last row of the vocabulary is left out: it is never generated.
  """
  vocab = config.vocab_size - (config.mask_id == config.vocab_size - 1)
  as_f32 = lambda x: np.asarray(x, np.float32)
  flat = lambda kernel: as_f32(kernel).reshape(config.d_model, -1).T
  layers = params["layers"]
  tensors: dict[str, np.ndarray] = {}
  turn = rope.to_half_pairs if config.rope_interleaved else as_f32
  for i in range(config.num_layers):
    attn, mlp, at = layers["attn"], layers["mlp"], f"model.layers.{i}"
    o_kernel = as_f32(attn["o_kernel"][i]).reshape(-1, config.d_model)
    tensors |= {
      f"{at}.self_attn.q_proj.weight": flat(turn(as_f32(attn["q_kernel"][i]))),
      f"{at}.self_attn.k_proj.weight": flat(turn(as_f32(attn["k_kernel"][i]))),
      f"{at}.self_attn.v_proj.weight": flat(attn["v_kernel"][i]),
      f"{at}.self_attn.o_proj.weight": o_kernel.T,
      f"{at}.mlp.gate_proj.weight": as_f32(mlp["gate_kernel"][i]).T,
      f"{at}.mlp.up_proj.weight": as_f32(mlp["up_kernel"][i]).T,
      f"{at}.mlp.down_proj.weight": as_f32(mlp["down_kernel"][i]).T,
      f"{at}.input_layernorm.weight": as_f32(layers["attn_norm"]["scale"][i]),
      f"{at}.post_attention_layernorm.weight": as_f32(layers["mlp_norm"]["scale"][i]),
    }
  head = params["embedding"] if config.tie_embeddings else params["head"]
  return tensors | {
    "model.embed_tokens.weight": as_f32(params["embedding"])[:vocab],
    "model.norm.weight": as_f32(params["final_norm"]["scale"]),
    "lm_head.weight": as_f32(head)[:vocab],
  }


def make_llama(config: TransformerConfig, params: Mapping[str, Any]) -> Any:
  """A LlamaForCausalLM with our weights, in float32 on the CPU.

  Raises:
    UsageError: the model is not a plain Llama (biases, other norms, rescaled rotary frequencies).
  """
  import torch
  import transformers

  biased = config.qkv_bias or config.o_bias or config.mlp_bias
  changed = biased or config.qk_norm or config.embedding_norm or config.norm_order != "pre"
  if changed or config.rope_scaling is not None or config.rope_frequencies is not None:
    raise UsageError("only plain Llama models can be compared with transformers: use --no_torch")
  tensors = state_dict(config, params)
  # As a dictionary: which of them are arguments and which attributes differs between releases.
  settings: dict[str, Any] = dict(
    vocab_size=len(tensors["lm_head.weight"]),
    hidden_size=config.d_model,
    intermediate_size=config.d_ff,
    num_hidden_layers=config.num_layers,
    num_attention_heads=config.num_heads,
    num_key_value_heads=config.num_kv_heads,
    head_dim=config.head_dim,
    max_position_embeddings=config.max_seq_len,
    rms_norm_eps=config.norm_eps,
    rope_theta=config.rope_theta,
    tie_word_embeddings=config.tie_embeddings,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=0,
  )
  model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).eval()
  model.load_state_dict({k: torch.tensor(v) for k, v in tensors.items()})
  return model


class Generated(NamedTuple):
  """One `generate`.

  Attributes:
    tokens: without the prompt, of each row.
    forwards: of the model.
    query_tokens: that all forwards ran, those of the prompt too.
    seconds: wall-clock.
  """

  tokens: list[list[int]]
  forwards: int
  query_tokens: int
  seconds: float


def generate(
  model: Any,
  prompts: Sequence[Sequence[int]],
  count: int,
  eos_ids: Sequence[int] = (),
  **options: Any,
) -> Generated:
  """Greedy `generate` of `count` tokens after prompts of one length.

  Args:
    eos_ids: tokens that end a text earlier; without any, all have `count` tokens.
    options: further ones of `generate`, like prompt_lookup_num_tokens.
  """
  import torch

  inputs = torch.tensor([list(p) for p in prompts])
  ends = {"eos_token_id": list(eos_ids)} if eos_ids else {"min_new_tokens": count}
  widths: list[int] = []

  def note_width(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    ids = args[0] if args else kwargs["input_ids"]
    widths.append(ids.numel())

  hook = model.register_forward_pre_hook(note_width, with_kwargs=True)
  with hook, torch.inference_mode():
    start = time.perf_counter()
    out = model.generate(
      inputs,
      attention_mask=torch.ones_like(inputs),
      max_new_tokens=count,
      do_sample=False,
      use_cache=True,
      **ends,
      **options,
    )
    seconds = time.perf_counter() - start
  return Generated(out[:, inputs.shape[1] :].tolist(), len(widths), sum(widths), seconds)


def time_generate(
  config: TransformerConfig,
  params: Mapping[str, Any],
  prompts: Sequence[Sequence[int]],
  max_tokens: int,
  repeats: int,
  threads: int,
) -> tuple[DecodingTiming, list[list[int]]]:
  """Times greedy `generate` of prompts of one length; also returns the tokens generated.

  The prompts' forward is timed by generating a single token, and taken off. `threads` are those of
  torch; for a small model one is often faster than all.
  """
  import torch

  torch.set_num_threads(threads)
  run = functools.partial(generate, make_llama(config, params), prompts)
  tokens = run(max_tokens).tokens
  prefill = summarise([run(1).seconds for _ in range(repeats)]).median
  # The first token comes with the prompt's forward, so that one is not counted again.
  count = len(prompts) * (max_tokens - 1)
  speed = summarise([count / (run(max_tokens).seconds - prefill) for _ in range(repeats)])
  row = DecodingTiming(
    decoder=f"transformers generate, torch with {threads} thread{'s' * (threads > 1)}",
    batch_size=len(prompts),
    tokens=len(prompts) * max_tokens,
    nfe=max_tokens,
    tokens_per_second=speed.median,
    low=speed.low,
    high=speed.high,
    prefill_seconds=prefill,
    compile_seconds=None,
    repeats=repeats,
    prompt_length=max(map(len, prompts)),
  )
  return row, tokens
