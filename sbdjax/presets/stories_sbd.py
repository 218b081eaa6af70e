r"""Fine-tunes stories260K (a real 260K-parameter Llama) into a Set Block Decoding model.

  python -m sbdjax train --config=preset:stories_sbd --workdir=runs/sbd
  python -m sbdjax train --config=preset:stories_sbd:self --workdir=runs/sbd_self \
    --config.data.path=runs/self.npz

Variants: `raw` (TinyStories as they are), `self` (the base model's own stories, made by
experiments/sbd_stories260k/collect.py; the embedded slice unless data.path names a larger file),
`recipe` (`self` with small blocks, Muon and 6,000 steps) and `further` (8,000 steps more, from the run
of `recipe`, on more stories; next tokens are learned from the frozen original, and what is used is a
moving average). The shipped weights are those of `further`. `drafts` is as long as `recipe`, with
every row masked whole: for verified decoding alone.
"""

from ml_collections import ConfigDict

from sbdjax.presets import Variants

DATA = {
  # One row is one segment, as the base model was trained: each bos ends the story before it.
  "raw": dict(source="stories", add_bos=True, packing="concat"),
  "self": dict(
    source="tokens", path="asset:stories_self.npz", packing="concat", separate_documents=True
  ),
}


# The first of the two trainings of experiments/sbd_stories260k.
RECIPE = {
  "loss.block_size_min": 4,
  "loss.block_size_max": 8,
  "optim.name": "muon",
  "optim.learning_rate": 6e-3,
  "train.steps": 6000,
}

FURTHER = RECIPE | {
  "init.checkpoint": "runs/recipe",
  "init.teacher": "stories260K",
  "loss.ntp_teacher": "frozen",
  "optim.learning_rate": 4e-3,
  "train.steps": 8000,
  "train.ema_decay": 0.99,
}

DRAFTS = RECIPE | {
  "init.teacher": "stories260K",
  "loss.ntp_teacher": "frozen",
  "loss.full_mask_fraction": 1.0,
  "train.ema_decay": 0.99,
}

# variant -> (corpus, changes)
VARIANTS = Variants(
  {
    "raw": ("raw", {}),
    "self": ("self", {}),
    "recipe": ("self", RECIPE),
    "further": ("self", FURTHER),
    "drafts": ("self", DRAFTS),
  }
)


def get_config(variant: str = VARIANTS.default) -> ConfigDict:
  corpus, changes = VARIANTS[variant]
  config = _stories(corpus)
  config.update_from_flattened_dict(changes)
  return config


def _stories(corpus: str) -> ConfigDict:
  return ConfigDict(
    dict(
      init=dict(checkpoint="stories260K", mask_token=True, teacher=""),
      data=dict(tokenizer="tok512", seq_len=128, **DATA[corpus]),
      loss=dict(
        name="sbd",
        block_size_min=2,
        block_size_max=16,
        ntp_weight=1.0,
        masked_weight=1.0,
        normalisation="sum",
        full_mask_fraction=0.0,
        ntp_teacher="labels",
      ),
      optim=dict(
        name="adamw",
        learning_rate=3e-3,
        schedule="cosine",
        warmup_steps=100,
        final_fraction=0.01,
        b2=0.98,
        weight_decay=0.0,
        clip_norm=1.0,
      ),
      train=dict(
        steps=2500,
        batch_size=16,
        ema_decay=0.0,
        log_every=50,
        eval_every=500,
        eval_batches=32,
        checkpoint_every=500,
        seed=0,
      ),
      parallel=dict(mode="mesh"),
    )
  )
