r"""Fine-tunes stories260K (a real 260K-parameter Llama) into a block-diffusion model.

  python experiments/freedave_stories260k/align.py --tokens=runs/self.npz --out=runs/self_blocks.npz
  python -m sbdjax train --config=preset:stories_block_diffusion:4 --workdir=runs/bd4 \
    --config.data.path=runs/self_blocks.npz

Variants: BLOCK_SIZE or BLOCK_SIZE,CORPUS. CORPUS is `self` (the base model's own stories, made by
experiments/sbd_stories260k/collect.py; the embedded slice unless data.path names a larger file) or
`raw` (TinyStories as they are).

Whole stories start at a multiple of the block size if their lengths are multiples of it, as
align.py makes them: blocks are then cut as in decoding, and no story ends inside a block, where
the document mask would let the model count the places left.
"""

from ml_collections import ConfigDict

from sbdjax.presets import Variants

DATA = {
  # One row is one segment, as the base model was trained: each bos ends the story before it.
  "raw": dict(source="stories", add_bos=True, packing="concat"),
  "self": dict(
    source="tokens", path="asset:stories_self.npz", packing="first_fit", separate_documents=True
  ),
}


def _read(text: str) -> tuple[int, str]:
  block_size, _, corpus = text.partition(",")
  if (corpus or "self") not in DATA:
    raise ValueError(text)
  return int(block_size), corpus or "self"


VARIANTS = Variants({"4": (4, "self"), "16": (16, "self")}, "BLOCK_SIZE[,CORPUS]", _read)


def get_config(variant: str = VARIANTS.default) -> ConfigDict:
  block_size, corpus = VARIANTS[variant]
  return ConfigDict(
    dict(
      init=dict(checkpoint="stories260K", mask_token=True),
      data=dict(tokenizer="tok512", seq_len=256, **DATA[corpus]),
      loss=dict(name="block_diffusion", block_size=block_size),
      optim=dict(
        name="muon",
        learning_rate=5e-3,
        schedule="cosine",
        warmup_steps=100,
        final_fraction=0.01,
        b2=0.98,
        weight_decay=0.0,
        clip_norm=1.0,
      ),
      train=dict(
        steps=1500,
        batch_size=8,
        log_every=50,
        eval_every=500,
        eval_batches=32,
        checkpoint_every=250,
        seed=0,
      ),
      parallel=dict(mode="mesh"),
    )
  )
