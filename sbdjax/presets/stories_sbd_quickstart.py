"""What `python -m sbdjax quickstart` trains: stories260K becomes an SBD model in a few minutes.

  python -m sbdjax train --config=preset:stories_sbd_quickstart --workdir=runs/quickstart

Variants: `full`; `short` (a few updates, to see that everything runs).
"""

from ml_collections import ConfigDict

from sbdjax.presets import Variants

VARIANTS = Variants({"full": 320, "short": 4})  # updates


def get_config(variant: str = VARIANTS.default) -> ConfigDict:
  steps = VARIANTS[variant]
  return ConfigDict(
    dict(
      init=dict(checkpoint="stories260K", mask_token=True),
      # The base model's own stories: their low entropy is what makes an SBD model learn fast.
      data=dict(
        source="tokens",
        path="asset:stories_self.npz",
        tokenizer="tok512",
        seq_len=128,
        packing="concat",
        separate_documents=True,
      ),
      loss=dict(name="sbd", block_size_min=4, block_size_max=8),
      optim=dict(
        name="muon",
        learning_rate=6e-3,
        schedule="cosine",
        warmup_steps=steps // 10,
        final_fraction=0.01,
        b2=0.98,
        weight_decay=0.0,
        clip_norm=1.0,
      ),
      train=dict(
        steps=steps,
        batch_size=16,
        log_every=max(1, steps // 16),
        eval_every=0,
        checkpoint_every=0,
      ),
    )
  )
