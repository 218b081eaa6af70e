"""Every way to decode one SBD model side by side: AR, entropy-bounded, and verified SBD.

  python -m sbdjax sweep --config=preset:stories_sbd_verified_sweep --workdir=runs/verified

Verified points put out what AR does, so only their cost differs: `points` says after how many
acceptance points a forward drafts (0: all), `candidates` whether second choices are verified too.
Prompts are the beginnings of 240 test stories.
"""

from ml_collections import ConfigDict

BLOCK_SIZES = (4, 8, 16)
POINTS = (1, 2, 3, 4, 6, 8)


def get_config() -> ConfigDict:
  return ConfigDict(
    dict(
      sweep=dict(checkpoint="stories260K-sbd", judge="stories260K", timed_prompts=12),
      decoder=dict(name="sbd_verified", max_tokens=200),
      data=dict(source="stories"),
    )
  )


def _verified(drafting: str, block_size: int, points: int = 0, candidates: bool = False) -> dict:
  point = {"drafting": drafting, "block_size": block_size, "candidates": candidates}
  if drafting == "fan_out":
    point["points"] = points
  return {f"decoder.{name}": value for name, value in point.items()}


def get_sweep() -> list[dict]:
  entropy_bounded = [
    {"decoder.name": "sbd", "decoder.block_size": 8, "decoder.gamma": gamma}
    for gamma in (0.1, 0.4, 0.8)
  ]
  plain = [_verified(name, k) for name in ("alternating", "fused", "fan_out") for k in BLOCK_SIZES]
  branching = [_verified("fan_out", k, candidates=True) for k in (4, 6, 8)]
  chosen = [_verified("fan_out", 6, points, candidates=True) for points in POINTS]
  return [{"decoder.name": "ar"}, *entropy_bounded, *plain, *branching, *chosen]
