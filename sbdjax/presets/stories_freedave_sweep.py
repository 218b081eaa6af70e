"""FreeDave beside static and dynamic decoding of a block-diffusion stories model.

  python -m sbdjax sweep --config=preset:stories_freedave_sweep:4 --workdir=runs/freedave4

The variant is the block size: runs/bd4 or runs/bd16 of `stories_block_diffusion` decodes
(--config.sweep.checkpoint names another). Prompts are the beginnings of 240 test stories; the
judge is the model that block diffusion was fine-tuned from, whose own text is the last point.
"""

from ml_collections import ConfigDict

from sbdjax.presets import Variants

THRESHOLDS = (0.7, 0.8, 0.9, 0.95)
DRAFT_STEPS = (1, 2, 4, 8, 16)
# Drafts of further blocks widen every forward: more of them take too long on two cores.
EAGER_STEPS = 8

VARIANTS = Variants({"4": 4, "16": 16}, "BLOCK_SIZE", int)


def get_config(variant: str = VARIANTS.default) -> ConfigDict:
  return ConfigDict(
    dict(
      sweep=dict(
        checkpoint=f"runs/bd{VARIANTS[variant]}",
        judge="stories260K",
        batch_size=12,
        timed_prompts=12,
      ),
      # A story is over with the block that holds its end: what follows it there is no text.
      decoder=dict(name="static", max_tokens=200, early_exit=True, exit_at="eos"),
      data=dict(source="stories"),
    )
  )


def get_sweep(variant: str = VARIANTS.default) -> list[dict]:
  # Batch drafts make the same forwards as a tree and copy the cache for every draft: one block size
  # shows what that costs.
  size = VARIANTS[variant]
  kinds = [("tree", False), *([("batch", False)] if size == 4 else []), ("tree", True)]
  dynamic = [{"decoder.name": "dynamic", "decoder.threshold": tau} for tau in THRESHOLDS]
  freedave = [
    {
      "decoder.name": "freedave",
      "decoder.draft_steps": d,
      "decoder.draft_mode": mode,
      "decoder.eager": eager,
    }
    for mode, eager in kinds
    for d in DRAFT_STEPS
    if d <= (EAGER_STEPS if eager else size)  # a block has no more steps than tokens
  ]
  verified = [
    {
      "decoder.name": "freedave",
      "decoder.threshold": tau,
      "decoder.draft_steps": 8,
      "decoder.eager": True,
      "decoder.skip_known_forwards": True,
    }
    for tau in THRESHOLDS
  ]
  carried = [
    {
      "decoder.name": "freedave",
      "decoder.draft_steps": d,
      "decoder.eager": True,
      "decoder.reuse_verified_kv": True,
    }
    for d in (4, 8)
  ]
  skipping = {
    "decoder.name": "freedave", "decoder.draft_steps": 8, "decoder.eager": True,
    "decoder.skip_known_forwards": True,
  }  # fmt: skip
  base = {
    "decoder.name": "ar",
    "sweep.checkpoint": "stories260K",
    "sweep.label": "stories260K",
  }
  return [{"decoder.name": "static"}, base, *dynamic, *freedave, *carried, skipping, *verified]
