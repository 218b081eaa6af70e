"""Every method of experiments/one_task by the clock: all points decode the same exercises in turns.

  python experiments/one_task/measure.py --runs=runs/one_task --write_prompts=runs/prompts.jsonl \
    --out=points.jsonl
  python -m sbdjax sweep --config=preset:stories_exercises_sweep --workdir=runs/turns \
    --config.sweep.prompts=runs/prompts.jsonl

The checkpoints are runs of `stories_exercises` in runs/one_task. The first point, AR of the NTP model, is
what the others are compared with. Whether an answer is right, measure.py says.
"""

from typing import Any

from ml_collections import ConfigDict

RUNS = "runs/one_task"
EXITS = {"early_exit": True, "exit_at": "eos"}
AR = {"name": "ar"}
CANVAS: dict[str, Any] = {"block_size": 8, **EXITS}
WINDOW = {"name": "jacobi_window", "block_size": 8, "pool": "ngrams", "num_candidates": 4}

# Folder -> flat settings of its decoders.
POINTS: dict[str, tuple[dict[str, Any], ...]] = {
  "ntp": (AR, {"name": "sbd_verified", "drafting": "none", "lookup": "text"}, WINDOW),
  "sbd": (
    AR,
    {"name": "sbd", "block_size": 8, "rule": "factor", "f": 0.5},
    *(
      {"name": "sbd_verified", "drafting": way, "block_size": k}
      for way in ("alternating", "fused")
      for k in (4, 8)
    ),
    {"name": "sbd_verified", "drafting": "fan_out", "block_size": 8},
  ),
  "sbd_adapter": tuple(
    {"name": "sbd_verified", "drafting": way, "block_size": 8} for way in ("alternating", "fused")
  ),
  "jacobi_frozen/round1": (AR, {"name": "jacobi", "block_size": 8}, WINDOW),
  "cllm/round1": (AR, {"name": "jacobi", "block_size": 8}, WINDOW),
  "block_diffusion": (
    {"name": "static", **EXITS},
    {"name": "dynamic", "threshold": 0.9, **EXITS},
    {"name": "freedave", "draft_steps": 4, "eager": True, **EXITS},
  ),
  "mdm": (
    {"name": "static", **CANVAS},
    {"name": "dynamic", "threshold": 0.9, **CANVAS},
    {"name": "freedave", "draft_steps": 4, "eager": True, **CANVAS},
  ),
  "ssmd": (
    {"name": "mdm", "unmask": "top_k", "tokens_per_step": 1},
    {"name": "ssmd", "window": "cosine", "dtau": 0.05},
  ),
}


def get_config() -> ConfigDict:
  return ConfigDict(
    dict(
      sweep=dict(
        checkpoint=f"{RUNS}/ntp",
        judge=f"{RUNS}/ntp",
        prompts="runs/prompts.jsonl",
        num_prompts=300,
        timed_prompts=60,
        repeats=3,
      ),
      decoder=dict(name="ar", max_tokens=64),
    )
  )


def get_sweep() -> list[dict]:
  return [
    {"sweep.checkpoint": f"{RUNS}/{folder}", "sweep.label": folder}
    | {f"decoder.{name}": value for name, value in decoder.items()}
    for folder, decoders in POINTS.items()
    for decoder in decoders
  ]
