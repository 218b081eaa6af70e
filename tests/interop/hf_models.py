"""A small random model of every family, as `load_pretrained` would return it."""

import numpy as np

from sbdjax.interop import GenerationDefaults, Pretrained
from tests import models

_SCALING = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=16)
_BIASES = dict(norm="layer", qkv_bias=True, o_bias=True, mlp_bias=True)
_ESM = dict(mlp="gelu", mlm_head=True, num_kv_heads=4, **_BIASES)

# Name -> (fields of the network, fields of GenerationDefaults, the class that is written).
FAMILIES = {
  "llama": (
    dict(rope_scaling=_SCALING, head_dim=6, tie_embeddings=False, norm_eps=1e-6),
    {},
    "LlamaForCausalLM",
  ),
  "llama_biases": (
    dict(qkv_bias=True, o_bias=True, mlp_bias=True),
    dict(decoding=dict(temperature=0.6, top_k=20, top_p=0.95, max_tokens=32)),
    "LlamaForCausalLM",
  ),
  "qwen2": (dict(qkv_bias=True, num_heads=6, num_kv_heads=1, head_dim=2), {}, "Qwen2ForCausalLM"),
  "qwen3": (dict(qk_norm=True, head_dim=10), dict(decoding={}), "Qwen3ForCausalLM"),
  "sbd": (dict(qk_norm=True, mask_id=9, unused_rows=3), {}, "Qwen3ForCausalLM"),
  "dream": (
    dict(qkv_bias=True, mask_id=5, tie_embeddings=False),
    dict(attention="full", shifted=True),
    "DreamModel",
  ),
  "sdar": (
    dict(qk_norm=True, mask_id=5, num_layers=3),
    dict(attention="block_causal", block_size=8),
    "SDARForCausalLM",
  ),
  "fast_dllm": (
    dict(qkv_bias=True, mask_id=5),
    dict(attention="block_causal", block_size=32, shifted=True),
    "Fast_dLLM_QwenForCausalLM",
  ),
  "llada": (
    dict(num_kv_heads=1, mask_id=0, tie_embeddings=False, rope_theta=5e5),
    dict(attention="full"),
    "LLaDAModelLM",
  ),
  "gpt2": (
    dict(mlp="gelu_tanh", positions="learned", num_kv_heads=4, **_BIASES),
    dict(eos_ids=(0,)),
    "GPT2LMHeadModel",
  ),
  "esm": (
    dict(mask_id=12, pad_id=1, token_dropout=True, **_ESM),
    dict(attention="full"),
    "EsmForMaskedLM",
  ),
  "esm_plain": (
    dict(mask_id=12, tie_embeddings=False, norm_eps=1e-3, **_ESM),
    dict(attention="full", eos_ids=()),
    "EsmForMaskedLM",
  ),
}

_BERT = dict(
  mlp="gelu", mlm_head=True, num_kv_heads=4, positions="learned", norm_order="post",
  embedding_norm=True, norm_eps=1e-12, **_BIASES,
)  # fmt: skip
FAMILIES |= {
  "bert": (dict(mask_id=4, **_BERT), dict(attention="full"), "BertForMaskedLM"),
  "bert_plain": (
    dict(mask_id=None, tie_embeddings=False, **_BERT),
    dict(attention="full", eos_ids=()),
    "BertForMaskedLM",
  ),
}


def build(name, seed=0, tokenizer=None, **changes) -> Pretrained:
  """The model of FAMILIES[name]; `changes` are further fields of its network."""
  fields, how, _ = FAMILIES[name]
  lm = models.lm_of(**{**fields, **changes})
  how = {"eos_ids": (2, 3)} | how
  generation = GenerationDefaults(mask_id=lm.config.mask_id, **how)
  return Pretrained(lm, models.random_params(lm, seed), tokenizer, generation)


def without(token_id, logits):
  """The logits of all other tokens; all of them where there is no such token."""
  return logits if token_id is None else np.delete(logits, token_id, axis=-1)
