r"""Fine-tunes stories260K on exercises with one right answer, by every method that trains.

  python -m sbdjax train --config=preset:stories_exercises:ntp --workdir=runs/one_task/ntp
  python -m sbdjax train --config=preset:stories_exercises:sbd --workdir=runs/one_task/sbd

The exercises (sbdjax/data/exercises.py) are drawn from a seed; tests ask other problems in other
words. Variants: `ntp`, `sbd`, `sbd_no_ntp` (the masked half of its loss alone), `block_diffusion`,
`mdm` and `ssmd` (every token sees every other; `ssmd` has one more, causal block). The others start from
runs/one_task/ntp (--config.init.checkpoint names another): `sbd_adapter` trains a drafting adapter;
`jacobi` collects that model's trajectories, then trains on them; `jacobi_frozen` does so with the model it
starts from as the teacher of both terms, and with the weight, optimiser and moving average of preset:stories_jacobi; `cllm` differs from
`jacobi_frozen` in its context, which is clean, and its points, which are random.
experiments/one_task measures all of them.
"""

from typing import Any

from ml_collections import ConfigDict

from sbdjax.presets import Variants

# Every row holds whole exercises, each with positions of its own, as they are decoded.
DATA = dict(
  source="exercises",
  tokenizer="tok512",
  seq_len=128,
  packing="first_fit",
  reset_positions=True,
  separate_documents=True,
  count=40_000,
)
NTP = "runs/one_task/ntp"
BLOCKS = dict(name="sbd", block_size_min=4, block_size_max=8)
BLOCK_SIZE = 4  # of block diffusion
# One exercise a row, filled up with end marks, which are targets: a model that fills a whole canvas
# has to learn where a text ends.
CANVAS = 96
CANVASES = dict(DATA, seq_len=CANVAS, multiple=CANVAS, packing="pad")

# What the variants share but those on trajectories.
BASE: dict[str, Any] = dict(
  init=dict(checkpoint="stories260K", mask_token=True),
  data=DATA,
  optim=dict(
    name="muon",
    learning_rate=6e-3,
    schedule="cosine",
    warmup_steps=100,
    final_fraction=0.01,
    b2=0.98,
    weight_decay=0.0,
    clip_norm=1.0,
  ),
  train=dict(
    steps=1000,
    batch_size=16,
    log_every=50,
    eval_every=250,
    eval_batches=8,
    checkpoint_every=250,
    max_to_keep=1,
    seed=0,
  ),
  parallel=dict(mode="mesh"),
)
ANY_ORDER: dict[str, Any] = dict(BASE, data=CANVASES, train=dict(BASE["train"], batch_size=20))
ADAPTER_RANK = 16
JACOBI: dict[str, Any] = dict(
  init=dict(checkpoint=NTP),
  prompts=dict(source="exercises", tokenizer="tok512", count=4096),
  collect=dict(
    checkpoint=NTP,
    block_size=8,
    max_tokens=64,
    longest=60,
    limit=4096,
    batch_size=128,
    shard_size=512,
    seed=0,
  ),
  data=dict(
    source="trajectories",
    path="",
    tokenizer="tok512",
    seq_len=128,
    noise=dict(schedule="linear", window=4, ratio="count", shift=True, blocks="all"),
  ),
  loss=dict(name="jacobi", mask="noisy", ar_weight=1.0, normalisation="tokens"),
  optim=dict(BASE["optim"], name="adamw", learning_rate=2e-3, warmup_steps=20),
  train=dict(BASE["train"], steps=400, eval_every=200, checkpoint_every=100),
)
FROZEN: dict[str, Any] = JACOBI | dict(
  loss=dict(JACOBI["loss"], teacher="frozen", ar_weight=2.0),
  optim=dict(BASE["optim"], warmup_steps=20),
  train=dict(JACOBI["train"], ema_decay=0.99),
)
CLEAN: dict[str, Any] = FROZEN | dict(
  data=dict(JACOBI["data"], noise=dict(JACOBI["data"]["noise"], schedule="random")),
  loss=dict(FROZEN["loss"], mask="clean"),
)

VARIANTS: Variants[dict[str, Any]] = Variants(
  {
    "ntp": dict(BASE, loss=dict(name="ntp")),
    "sbd": dict(BASE, loss=BLOCKS),
    "sbd_no_ntp": dict(BASE, loss=dict(BLOCKS, ntp_weight=0.0)),
    "block_diffusion": dict(
      BASE,
      data=dict(DATA, multiple=BLOCK_SIZE),
      loss=dict(name="block_diffusion", block_size=BLOCK_SIZE),
    ),
    # With 1,000 updates a model that saw the past alone has not learned to read the question.
    "mdm": dict(
      ANY_ORDER,
      loss=dict(name="mdm"),
      train=dict(ANY_ORDER["train"], steps=5000, eval_every=1000, checkpoint_every=1000),
    ),
    "ssmd": dict(
      ANY_ORDER, head=dict(num_layers=1), loss=dict(name="ssmd", weighting="inverse_count")
    ),
    "sbd_adapter": dict(
      BASE,
      init=dict(checkpoint=NTP, mask_token=True),
      model=dict(adapter=dict(rank=ADAPTER_RANK, alpha=2.0 * ADAPTER_RANK)),
      loss=dict(BLOCKS, full_mask_fraction=1.0),
      optim=dict(BASE["optim"], name="adamw", learning_rate=4e-3),
    ),
    "jacobi": dict(BASE, **JACOBI),
    "jacobi_frozen": dict(BASE, **FROZEN),
    "cllm": dict(BASE, **CLEAN),
  }
)


def get_config(variant: str = VARIANTS.default) -> ConfigDict:
  return ConfigDict(VARIANTS[variant])


def get_rounds(variant: str = VARIANTS.default) -> list[dict] | None:
  return [{}] if "collect" in VARIANTS[variant] else None
