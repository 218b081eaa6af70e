r"""Turns stories260K (a real 260K-parameter Llama) into a Jacobi Forcing model, in two rounds.

  python -m sbdjax train --config=preset:stories_jacobi --workdir=runs/jacobi

collects the base model's Jacobi trajectories with blocks of 16 (WORKDIR/round1/trajectories),
trains on them (WORKDIR/round1), collects those of the trained model with blocks of 32, and trains
on. Re-running the command resumes. `python -m sbdjax trajectories` with this file collects alone.

Both terms learn from the original model, which is frozen, each text is seen 1.5 times, and
what is used is a moving average: trained on 1,024 texts that were seen nine times, with hard labels, the
text got much worse (experiments/jacobi_stories260k).

Variant `once` trains one round on trajectories that are there, which comparisons share:

  python -m sbdjax train --config=preset:stories_jacobi:once --workdir=runs/jacobi_clean \
    --config.data.path=runs/jacobi/round1/trajectories --config.loss.mask=clean
"""

from ml_collections import ConfigDict

from sbdjax.presets import Variants

# Openings of the embedded training stories, told on greedily by the model itself.
COLLECTED = dict(
  prompts=dict(source="stories", add_bos=True),
  collect=dict(
    checkpoint="stories260K",
    block_size=16,
    max_tokens=224,
    shortest=4,
    longest=96,
    passes=20,
    limit=9000,
    batch_size=128,
    shard_size=128,
    seed=0,
  ),
)
VARIANTS = Variants({"rounds": COLLECTED, "once": {}})


def get_config(variant: str = VARIANTS.default) -> ConfigDict:
  return ConfigDict(
    dict(
      init=dict(checkpoint="stories260K", teacher="stories260K"),
      **VARIANTS[variant],
      data=dict(
        source="trajectories",
        path="",
        tokenizer="tok512",
        seq_len=320,
        noise=dict(schedule="linear", window=16, ratio="count", shift=True, blocks="all"),
      ),
      loss=dict(
        name="jacobi",
        mask="noisy",
        window=16,
        ar_weight=2.0,
        normalisation="tokens",
        teacher="frozen",
      ),
      optim=dict(
        name="muon",
        learning_rate=6e-3,
        schedule="cosine",
        warmup_steps=20,
        final_fraction=0.01,
        b2=0.98,
        weight_decay=0.0,
        clip_norm=1.0,
      ),
      train=dict(
        steps=843,
        batch_size=16,
        ema_decay=0.99,
        log_every=20,
        eval_every=200,
        eval_batches=2,
        checkpoint_every=100,
        seed=0,
      ),
      parallel=dict(mode="mesh"),
    )
  )


def get_rounds(variant: str = VARIANTS.default) -> list[dict] | None:
  if variant == "once":
    return None
  return [
    {},
    {
      "collect.block_size": 32,
      "collect.limit": 2560,
      "collect.seed": 1,
      "data.noise.window": 8,
      "train.steps": 240,
      "train.seed": 1,
    },
  ]
