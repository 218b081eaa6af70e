"""Turns stories260K (a real 260K-parameter Llama) into a Jacobi Forcing model, in two rounds.

  python -m sbdjax train --config=configs/jacobi_stories.py --workdir=runs/jacobi

collects the base model's Jacobi trajectories with blocks of 16 (WORKDIR/round1/trajectories),
trains on them (WORKDIR/round1), collects those of the trained model with blocks of 32, and trains
on. Each stage goes on where it was. `python -m sbdjax trajectories` with this file collects alone.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  return ConfigDict(
    dict(
      init=dict(checkpoint="stories260K"),
      prompts=dict(source="stories", add_bos=True),
      collect=dict(
        checkpoint="stories260K",
        block_size=16,
        max_tokens=224,
        shortest=4,
        longest=48,
        passes=4,
        limit=0,
        batch_size=128,
        shard_size=512,
        seed=0,
      ),
      data=dict(
        source="trajectories",
        path="",
        tokenizer="tok512",
        seq_len=272,
        noise=dict(schedule="linear", window=16, ratio="count", shift=True, blocks="all"),
      ),
      loss=dict(name="jacobi", mask="noisy", ar_weight=1.0, normalisation="tokens"),
      optim=dict(
        name="muon",
        learning_rate=3e-3,
        schedule="cosine",
        warmup_steps=50,
        final_fraction=0.01,
        b2=0.98,
        weight_decay=0.0,
        clip_norm=1.0,
      ),
      train=dict(
        steps=1000,
        batch_size=16,
        log_every=50,
        eval_every=500,
        eval_batches=8,
        checkpoint_every=250,
        seed=0,
      ),
      parallel=dict(mode="mesh"),
    )
  )


def get_rounds() -> list[dict]:
  return [
    {},
    {
      "collect.block_size": 32,
      "collect.seed": 1,
      "data.noise.window": 8,
      "train.seed": 1,
    },
  ]
