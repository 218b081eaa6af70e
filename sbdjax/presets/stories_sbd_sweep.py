"""Quality against speed of the SBD stories model, over the entropy bound gamma and other rules.

  python -m sbdjax sweep --config=preset:stories_sbd_sweep --workdir=runs/sweep

Variants: `bounds` (AR of the original model and of this one, EB decoding over gamma, verified
decoding) and `rules` (these, and the other reveal rules, of which top_k is the vanilla one: a fixed
number of tokens per forward).

Prompts are the beginnings of 240 test stories, on which no choice was made; the judge is the model SBD
was fine-tuned from.
"""

from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from sbdjax.presets import Variants

ORIGINAL = "stories260K"
GAMMAS = (0.0, 0.01, 0.1, 0.2, 0.4, 0.8, 1.5)
VERIFIED: tuple[dict[str, Any], ...] = (
  {"drafting": "fused", "block_size": 4},
  {"drafting": "fan_out", "block_size": 8},
  {"drafting": "fan_out", "block_size": 8, "candidates": True},
)
# rule -> (its number, values)
RULES: dict[str, tuple[str, tuple[float | int, ...]]] = {
  "eb_confidence": ("gamma", (0.1, 0.4)),
  "eb_margin": ("gamma", (0.1, 0.4)),
  "factor": ("f", (0.25, 0.5, 1.0)),
  "confidence_threshold": ("tau", (0.95, 0.9, 0.8, 0.7, 0.6)),
  "entropy_threshold": ("gamma", (0.05, 0.1, 0.2)),
  "top_k": ("tokens_per_step", (2, 4)),
}
# In blocks of 4.
SMALLER: tuple[dict[str, Any], ...] = (
  {"decoder.gamma": 0.0},
  {"decoder.gamma": 0.2},
  *(
    {"decoder.rule": "confidence_threshold", "decoder.tau": tau}
    for tau in RULES["confidence_threshold"][1][1:]
  ),
  *({"decoder.rule": "top_k", "decoder.tokens_per_step": n} for n in RULES["top_k"][1]),
)


def _ar(checkpoint: str, label: str) -> dict:
  return {"decoder.name": "ar", "sweep.checkpoint": checkpoint, "sweep.label": label}


def _bounds() -> list[dict]:
  verified = [
    {"decoder.name": "sbd_verified"} | {f"decoder.{name}": value for name, value in way.items()}
    for way in VERIFIED
  ]
  bounds = [{"decoder.gamma": gamma} for gamma in GAMMAS]
  return [_ar(ORIGINAL, ORIGINAL), {"decoder.name": "ar"}, *bounds, *verified]


def _rules() -> list[dict]:
  others = [
    {"decoder.rule": rule, f"decoder.{name}": value}
    for rule, (name, values) in RULES.items()
    for value in values
  ]
  smaller = [{"decoder.block_size": 4, **way} for way in SMALLER]
  return [*_bounds(), *others, *smaller]


VARIANTS: Variants[Callable[[], list[dict]]] = Variants({"bounds": _bounds, "rules": _rules})


def get_config(variant: str = VARIANTS.default) -> ConfigDict:
  VARIANTS[variant]  # is one of them
  return ConfigDict(
    dict(
      sweep=dict(checkpoint="stories260K-sbd", judge=ORIGINAL, num_prompts=240, split="test"),
      decoder=dict(name="sbd", block_size=8, rule="eb_entropy", max_tokens=200),
      data=dict(source="stories"),
    )
  )


def get_sweep(variant: str = VARIANTS.default) -> list[dict]:
  """The points; the first is the original's own text, the second AR decoding of these weights."""
  return VARIANTS[variant]()
