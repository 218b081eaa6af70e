"""sbdjax: language models that emit several tokens per forward pass.

    import sbdjax

    model = sbdjax.load_pretrained("stories260K-sbd")
    method = sbdjax.decode.SBD(block_size=8, rule=sbdjax.decode.EBEntropy(gamma=0.2))
    for r in sbdjax.generate(model, ["Once upon a time"], method, max_tokens=100):
      print(r.text, r.tpf)

Public and stable are the names in `__all__` and what they document; anything else may change, and
names with an underscore will. Nothing is imported before it is used, JAX included.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from sbdjax import decode, losses, masks, presets, train
  from sbdjax.api import Output, default_method, generate, generate_many, stream
  from sbdjax.batch.request import Request
  from sbdjax.decode.base import Limits, Sampler
  from sbdjax.interop.pretrained import Pretrained, load_pretrained, save_pretrained
  from sbdjax.lm import LM, make_lm
  from sbdjax.nn.config import TransformerConfig
  from sbdjax.scores import Score, score
  from sbdjax.sigma_lm import SigmaLM, make_sigma_lm

__version__ = "0.1.0"

# Public name -> where it is. A module stands for itself.
_PUBLIC = {
  "LM": "sbdjax.lm",
  "Limits": "sbdjax.decode.base",
  "Output": "sbdjax.api",
  "Pretrained": "sbdjax.interop.pretrained",
  "Request": "sbdjax.batch.request",
  "Sampler": "sbdjax.decode.base",
  "Score": "sbdjax.scores",
  "SigmaLM": "sbdjax.sigma_lm",
  "TransformerConfig": "sbdjax.nn.config",
  "default_method": "sbdjax.api",
  "generate": "sbdjax.api",
  "generate_many": "sbdjax.api",
  "load_pretrained": "sbdjax.interop.pretrained",
  "make_lm": "sbdjax.lm",
  "make_sigma_lm": "sbdjax.sigma_lm",
  "save_pretrained": "sbdjax.interop.pretrained",
  "score": "sbdjax.scores",
  "stream": "sbdjax.api",
}
_MODULES = ("decode", "losses", "masks", "presets", "train")

__all__ = [
  "LM",
  "Limits",
  "Output",
  "Pretrained",
  "Request",
  "Sampler",
  "Score",
  "SigmaLM",
  "TransformerConfig",
  "__version__",
  "decode",
  "default_method",
  "generate",
  "generate_many",
  "load_pretrained",
  "losses",
  "make_lm",
  "make_sigma_lm",
  "masks",
  "presets",
  "save_pretrained",
  "score",
  "stream",
  "train",
]


def __getattr__(name: str) -> Any:
  if name in _MODULES:
    return importlib.import_module(f"sbdjax.{name}")
  if name in _PUBLIC:
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value
  raise AttributeError(f"module 'sbdjax' has no attribute {name!r}")


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
