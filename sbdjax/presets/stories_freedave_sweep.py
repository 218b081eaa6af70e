"""FreeDave beside static and dynamic decoding of a block-diffusion stories model.

  python -m sbdjax sweep --config=preset:stories_freedave_sweep:4 --workdir=runs/freedave4

The variant is the block size: runs/bd4 or runs/bd16 of `stories_block_diffusion` decodes
(--config.sweep.checkpoint names another). Prompts are the beginnings of 240 test stories; the
judge is the model that block diffusion was fine-tuned from, whose own text is the last point.
Variant `seeds`: the main points of trainings with other seeds, runs/bd4_1, runs/bd4_2, runs/bd16_1 and runs/bd16_2,
without speeds.
"""

import functools
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from sbdjax.presets import Variants

JUDGE = "stories260K"
THRESHOLDS = (0.7, 0.8, 0.9, 0.95)
DRAFT_STEPS = (1, 2, 4, 8, 16)
# Drafts of further blocks widen every forward: more of them take too long on two cores.
EAGER_STEPS = 8

SIZES, SEEDS = (4, 16), (1, 2)


def _freedave(**settings: Any) -> dict:
  return {f"decoder.{name}": value for name, value in dict(settings, name="freedave").items()}


def _points(size: int) -> list[dict]:
  # Batch drafts make the same forwards as a tree and copy the cache for every draft: one block size
  # shows what that costs.
  kinds = [("tree", False), *([("batch", False)] if size == 4 else []), ("tree", True)]
  dynamic = [{"decoder.name": "dynamic", "decoder.threshold": tau} for tau in THRESHOLDS]
  drafts = [
    _freedave(draft_steps=d, draft_mode=mode, eager=eager)
    for mode, eager in kinds
    for d in DRAFT_STEPS
    if d <= (EAGER_STEPS if eager else size)  # a block has no more steps than tokens
  ]
  skipping = dict(draft_steps=8, eager=True, skip_known_forwards=True)
  carried = [_freedave(draft_steps=d, eager=True, reuse_verified_kv=True) for d in (4, 8)]
  verified = [_freedave(threshold=tau, **skipping) for tau in THRESHOLDS]
  base = {
    "decoder.name": "ar",
    "sweep.checkpoint": JUDGE,
    "sweep.label": JUDGE,
  }
  return [
    {"decoder.name": "static"}, base, *dynamic, *drafts, *carried, _freedave(**skipping), *verified,
  ]  # fmt: skip


def _seeds() -> list[dict]:
  main: list[dict[str, Any]] = [
    {"decoder.name": "static"},
    *({"decoder.name": "dynamic", "decoder.threshold": tau} for tau in (0.7, 0.9)),
    *(_freedave(draft_steps=4, eager=eager) for eager in (False, True)),
    _freedave(draft_steps=4, eager=True, reuse_verified_kv=True),
  ]
  runs = [f"runs/bd{size}_{seed}" for size in SIZES for seed in SEEDS]
  return [point | {"sweep.checkpoint": run, "sweep.label": run} for run in runs for point in main]


# variant -> (what is decoded, its points)
VARIANTS: Variants[tuple[dict[str, Any], Callable[[], list[dict]]]] = Variants(
  {
    **{
      str(size): (
        dict(checkpoint=f"runs/bd{size}", timed_prompts=12),
        functools.partial(_points, size),
      )
      for size in SIZES
    },
    "seeds": (dict(checkpoint="runs/bd4_1", repeats=0), _seeds),
  }
)


def get_config(variant: str = VARIANTS.default) -> ConfigDict:
  sweep, _ = VARIANTS[variant]
  return ConfigDict(
    dict(
      sweep=dict(judge=JUDGE, batch_size=12, **sweep),
      # A story is over with the block that holds its end: what follows it there is no text.
      decoder=dict(name="static", max_tokens=200, early_exit=True, exit_at="eos"),
      data=dict(source="stories"),
    )
  )


def get_sweep(variant: str = VARIANTS.default) -> list[dict]:
  _, points = VARIANTS[variant]
  return points()
