"""FreeDave beside static and dynamic decoding of a block-diffusion stories model.

  python -m sbdjax sweep --config=preset:stories_freedave_sweep:4 --workdir=runs/freedave4

The variant is the block size: runs/bd4 or runs/bd16 of `stories_block_diffusion` decodes
(--config.sweep.checkpoint names another). BLOCK_SIZE,SEED is a training with another seed, runs/bd4_1:
it decodes with the main settings and is not timed. Prompts are the beginnings of 240 test stories; the
judge is the model that block diffusion was fine-tuned from, whose own text is the last point.
"""

from typing import Any

from ml_collections import ConfigDict

from sbdjax.presets import Variants

THRESHOLDS = (0.7, 0.8, 0.9, 0.95)
DRAFT_STEPS = (1, 2, 4, 8, 16)
# Drafts of further blocks widen every forward: more of them take too long on two cores.
EAGER_STEPS = 8


def _read(text: str) -> tuple[int, int | None]:
  block_size, _, seed = text.partition(",")
  return int(block_size), int(seed) if seed else None


VARIANTS: Variants[tuple[int, int | None]] = Variants(
  {"4": (4, None), "16": (16, None)}, "BLOCK_SIZE[,SEED]", _read
)
STATIC = {"decoder.name": "static"}


def get_config(variant: str = VARIANTS.default) -> ConfigDict:
  block_size, seed = VARIANTS[variant]
  speeds: dict[str, int] = dict(timed_prompts=12) if seed is None else dict(repeats=0)
  return ConfigDict(
    dict(
      sweep=dict(
        checkpoint=f"runs/bd{block_size}" + ("" if seed is None else f"_{seed}"),
        judge="stories260K",
        batch_size=12,
        **speeds,
      ),
      # A story is over with the block that holds its end: what follows it there is no text.
      decoder=dict(name="static", max_tokens=200, early_exit=True, exit_at="eos"),
      data=dict(source="stories"),
    )
  )


def _dynamic(threshold: float) -> dict[str, Any]:
  return {"decoder.name": "dynamic", "decoder.threshold": threshold}


def _freedave(**settings: Any) -> dict[str, Any]:
  return {"decoder.name": "freedave", **{f"decoder.{k}": v for k, v in settings.items()}}


def _carried() -> list[dict[str, Any]]:
  return [_freedave(draft_steps=d, eager=True, reuse_verified_kv=True) for d in (4, 8)]


def _main(size: int) -> list[dict[str, Any]]:
  """What the experiment's page quotes."""
  within = [_freedave(draft_steps=d, eager=False) for d in (4, 8) if d <= size]
  dynamic = [_dynamic(tau) for tau in (0.7, 0.9)]
  return [STATIC, *dynamic, *within, _freedave(draft_steps=8, eager=True), *_carried()]


def _all(size: int) -> list[dict[str, Any]]:
  # Batch drafts make the same forwards as a tree and copy the cache for every draft: one block size
  # shows what that costs.
  kinds = [("tree", False), *([("batch", False)] if size == 4 else []), ("tree", True)]
  drafts = [
    _freedave(draft_steps=d, draft_mode=mode, eager=eager)
    for mode, eager in kinds
    for d in DRAFT_STEPS
    if d <= (EAGER_STEPS if eager else size)  # a block has no more steps than tokens
  ]
  skipping: dict[str, Any] = dict(draft_steps=8, eager=True, skip_known_forwards=True)
  verified = [_freedave(threshold=tau, **skipping) for tau in THRESHOLDS]
  base = {
    "decoder.name": "ar",
    "sweep.checkpoint": "stories260K",
    "sweep.label": "stories260K",
  }
  dynamic = [_dynamic(tau) for tau in THRESHOLDS]
  return [STATIC, base, *dynamic, *drafts, *_carried(), _freedave(**skipping), *verified]


def get_sweep(variant: str = VARIANTS.default) -> list[dict[str, Any]]:
  block_size, seed = VARIANTS[variant]
  return _all(block_size) if seed is None else _main(block_size)
