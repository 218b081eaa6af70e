r"""A drafting adapter for SmolLM2-135M-Instruct, trained on answers that the model itself wrote.

  make smollm2
  python -m sbdjax collect --checkpoint=smollm2-135m --chat --prompts=prompts.jsonl \
    --workdir=runs/smollm2_text
  python -m sbdjax train --config=preset:smollm2_sbd_adapter --workdir=runs/smollm2_adapter \
    --config.data.path=runs/smollm2_text/tokens.npz
  python -m sbdjax convert runs/smollm2_adapter adapter.safetensors --dtype=bfloat16

The model's own weights are frozen; every block is masked whole, as verified decoding asks. The
answers are greedy ones, so each label is what the model itself would choose. Variants: `rank8`
(4.9 MB in bfloat16) and `rank16` (9.8 MB).
"""

from ml_collections import ConfigDict

from sbdjax.presets import Variants

VARIANTS = Variants({"rank8": 8, "rank16": 16})


def get_config(variant: str = VARIANTS.default) -> ConfigDict:
  rank = VARIANTS[variant]
  return ConfigDict(
    dict(
      init=dict(checkpoint="smollm2-135m", mask_token=True),
      model=dict(adapter=dict(rank=rank, alpha=float(2 * rank))),
      data=dict(
        source="tokens",
        path="runs/smollm2_text/tokens.npz",
        tokenizer="checkpoint",
        split_sizes=(0.97, 0.03, 0.0),
        seq_len=512,
        packing="first_fit",
        reset_positions=True,
        separate_documents=True,
      ),
      loss=dict(name="sbd", block_size_min=4, block_size_max=4, full_mask_fraction=1.0),
      optim=dict(
        name="adamw",
        learning_rate=2e-3,
        schedule="cosine",
        warmup_steps=20,
        final_fraction=0.02,
        b2=0.98,
        weight_decay=0.0,
        clip_norm=1.0,
      ),
      train=dict(
        steps=330,
        batch_size=2,
        log_every=10,
        eval_every=165,
        checkpoint_every=110,
        seed=0,
      ),
      parallel=dict(mode="mesh"),
    )
  )
