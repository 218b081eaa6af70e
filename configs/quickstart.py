"""What `python -m sbdjax quickstart` trains: stories260K becomes an SBD model in a few minutes.

Variants: the default; `short` (a few updates, to see that everything runs).
"""

from ml_collections import ConfigDict

from sbdjax.data import assets
from sbdjax.errors import DataError


def _stories() -> dict:
  """The base model's own stories where the package holds some, else TinyStories.

  An SBD model learns faster from text of low entropy, which is what a model writes itself.
  """
  name = "stories_self.npz"
  try:
    assets.path(name)
  except DataError:
    return dict(source="stories", add_bos=True)
  return dict(source="tokens", path=f"asset:{name}", separate_documents=True)


def get_config(variant: str = "full") -> ConfigDict:
  steps = {"full": 320, "short": 4}[variant]
  return ConfigDict(
    dict(
      init=dict(checkpoint="stories260K", mask_token=True),
      data=dict(tokenizer="tok512", seq_len=128, packing="concat", **_stories()),
      loss=dict(name="sbd", block_size_min=4, block_size_max=8),
      optim=dict(
        learning_rate=3e-3,
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
